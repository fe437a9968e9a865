"""Random changes of a state, as plain data that does the same to any copy of it.

Values are changed the ways nodes and reducers do: lists grow, are cut, slide, are edited in place;
dicts gain and lose keys; what was edited in place is returned, as LangGraph asks of a node.
"""

from typing import Any, NamedTuple

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage


class Edit(NamedTuple):
    """One change of one channel. `at` is brought into range by `apply`."""

    channel: str
    change: str
    at: int
    many: int
    kind: str
    number: int


KINDS = ("message", "reply", "record", "text", "long text", "number", "flag", "nothing", "nested")
CHANGES = {
    "list": (
        *("append",) * 4,
        *("set", "edit", "edit", "remove", "slide", "insert", "cut and edit", "reverse"),
        *("replace", "clear", "drop", "keep"),
    ),
    "dict": ("set", "set", "edit", "remove", "replace", "clear", "drop", "keep"),
    "plain": ("set", "set", "clear", "drop", "keep"),
}
CHANNELS = {"messages": "list", "items": "list", "notes": "dict", "text": "plain"}


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    channel = draw(st.sampled_from(sorted(CHANNELS)))
    return Edit(
        channel,
        draw(st.sampled_from(CHANGES[CHANNELS[channel]])),
        draw(st.integers(0, 7)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(KINDS)),
        draw(st.integers(0, 1000)),
    )


def make(kind: str, n: int) -> Any:
    """A new value of a kind; the same one whenever it is asked for."""
    match kind:
        case "message":
            return HumanMessage(f"message {n} " * 8, id=f"m{n}")
        case "reply":
            calls = [{"name": "look", "args": {"n": n}, "id": f"c{n}"}]
            return AIMessage(f"reply {n}", id=f"r{n}", tool_calls=calls)
        case "record":
            return {"n": n, "text": "r" * (n % 90), "list": [n, [n]]}
        case "text":
            return f"text {n}"
        case "long text":
            return f"long text {n} " * 12
        case "number":
            return n - 500
        case "flag":
            return n % 2 == 0
        case "nothing":
            return None
        case _:
            return [make("record", n), {"deep": make("message", n)}]


def apply(values: dict[str, Any], edit: Edit) -> list[Any]:
    """Change `values`; give what a node would have returned for it."""
    kind = CHANNELS[edit.channel]
    if edit.change == "drop":
        values.pop(edit.channel, None)
        return []
    if kind == "list":
        return _change_list(values, edit)
    if kind == "dict":
        return _change_dict(values, edit)
    if edit.change != "keep":
        values[edit.channel] = None if edit.change == "clear" else make(edit.kind, edit.number)
    return [values.get(edit.channel)]


def _new(edit: Edit) -> list[Any]:
    return [make(edit.kind, edit.number + n) for n in range(edit.many)]


def _change_list(values: dict[str, Any], edit: Edit) -> list[Any]:
    old: list[Any] = values.get(edit.channel) or []
    at = edit.at % len(old) if old else 0
    new = _new(edit)
    returned = new
    match edit.change:
        case "append":
            values[edit.channel] = [*old, *new]
        case "set":
            values[edit.channel] = [*old[:at], new[0], *old[at + 1 :]]
        case "edit":
            returned = [_touch(old[at], edit.number)] if old else []
            values[edit.channel] = [*old[:at], *returned, *old[at + 1 :]]
        case "remove":
            values[edit.channel] = [*old[:at], *old[at + edit.many :]]
        case "slide":
            values[edit.channel] = [*old[edit.many :], *new]
        case "insert":
            values[edit.channel] = [*old[:at], *new, *old[at:]]
        case "cut and edit":
            rest = [*old[:at], *old[at + 1 :]]
            returned = [_touch(item, edit.number) for item in rest[-1:]]
            values[edit.channel] = [*rest[:-1], *returned]
        case "reverse":
            values[edit.channel] = old[::-1]
        case "replace":
            values[edit.channel] = new
        case "clear":
            values[edit.channel] = []
    return returned


def _change_dict(values: dict[str, Any], edit: Edit) -> list[Any]:
    old: dict[Any, Any] = values.get(edit.channel) or {}
    keys = list(old)
    key = keys[edit.at % len(keys)] if keys else "first"
    match edit.change:
        case "set":
            values[edit.channel] = {**old, f"key {edit.at}": make(edit.kind, edit.number)}
        case "edit":
            values[edit.channel] = {**old, key: _touch(old.get(key), edit.number)}
        case "remove":
            values[edit.channel] = {k: v for k, v in old.items() if k != key}
        case "replace":
            values[edit.channel] = {edit.at: _new(edit), (1, edit.at): "pair"}
        case "clear":
            values[edit.channel] = {}
    return []


def _touch(item: Any, n: int) -> Any:
    """The same object, changed in place where it can be."""
    if isinstance(item, BaseMessage):
        item.content = f"touched {n}"
        item.additional_kwargs.setdefault("seen", []).append(n)
        return item
    if isinstance(item, dict):
        item["touched"] = n
        return item
    if isinstance(item, list):
        item.append(n)
        return item
    return f"touched {n}"
