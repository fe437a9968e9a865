"""SQLite, PostgreSQL and a plain dict say the same, whatever is done to them in whatever order.

Two savers per database take turns, as two processes would: each remembers what it stored and
loaded, and the other may have changed, copied or deleted it meanwhile.
"""

import copy
import itertools
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointMetadata,
    CheckpointTuple,
    writes_sort_key,
)

import perdure
from tests.support import sweep
from tests.support.scripts import plain


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


THREADS = st.sampled_from(["a", "b", "c"])
SPACES = st.sampled_from(["", "", "sub:1"])
PICKS = st.integers(0, 50)
SPECIAL = ("__interrupt__", "__error__", "__resume__")
FIRST = [
    Edit("messages", "append", 0, 7, "message", 0),
    Edit("items", "append", 0, 6, "record", 50),
    Edit("notes", "set", 0, 1, "nested", 0),
]
_examples = itertools.count()

Key = tuple[str, str, str]


class Entry(NamedTuple):
    """A checkpoint of the model."""

    parent: str | None
    values: dict[str, Any]
    versions: dict[str, int]
    metadata: dict[str, Any]


class Model:
    """What a saver promises, in a few dicts."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.writes: dict[Key, dict[int, tuple[str, str, list[tuple[str, Any]]]]] = {}

    def lane(self, thread: str, ns: str) -> list[str]:
        return sorted(id for t, n, id in self.entries if (t, n) == (thread, ns))

    def delete(self, doomed: set[Key]) -> None:
        for key in doomed:
            self.entries.pop(key, None)
            self.writes.pop(key, None)

    def pending(self, key: Key) -> list[Any]:
        chosen: dict[Any, Any] = {}
        for _, (task, path, writes) in sorted(self.writes.get(key, {}).items()):
            for n, (channel, value) in enumerate(writes):
                place = writes_sort_key(path, task, WRITES_IDX_MAP.get(channel, n))
                if channel in WRITES_IDX_MAP or place not in chosen:
                    chosen[place] = (task, channel, plain(value))
        return [chosen[place] for place in sorted(chosen)]

    def tell(self, key: Key) -> Any:
        entry = self.entries[key]
        parent = entry.parent and (*key[:2], entry.parent)
        values = {channel: plain(value) for channel, value in entry.values.items()}
        return key, parent, values, entry.versions, entry.metadata, self.pending(key)


def tell(found: CheckpointTuple) -> Any:
    parent = found.parent_config and place_of(found.parent_config)
    values = {c: plain(value) for c, value in found.checkpoint["channel_values"].items()}
    versions = found.checkpoint["channel_versions"]
    pending = [(task, channel, plain(value)) for task, channel, value in found.pending_writes or ()]
    return place_of(found.config), parent, values, versions, found.metadata, pending


def place_of(config: RunnableConfig) -> Key:
    where = config["configurable"]
    return where["thread_id"], where["checkpoint_ns"], where["checkpoint_id"]


def config(thread: str, ns: str, id: str | None = None) -> RunnableConfig:
    where = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": {**where, "checkpoint_id": id} if id else where}


class Side:
    """One database and the two savers on it that take turns."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.savers = [perdure.Saver(url), perdure.Saver(url)]
        self.live: list[dict[tuple[str, str], tuple[str, dict[str, Any]]]] = [{}, {}]
        self.turn = 0

    @property
    def saver(self) -> perdure.Saver:
        return self.savers[self.turn]

    def pass_on(self) -> None:
        self.saver.flush()
        self.turn = 1 - self.turn

    def restart(self) -> None:
        self.saver.close()
        self.savers[self.turn] = perdure.Saver(self.url)
        self.live[self.turn] = {}

    def values(self, thread: str, ns: str, parent: str | None) -> dict[str, Any]:
        """The very objects a run would go on with: those it last put, or what it loads."""
        known = self.live[self.turn].get((thread, ns))
        if parent is None:
            return {}
        if known is not None and known[0] == parent:
            return dict(known[1])
        found = self.saver.get_tuple(config(thread, ns, parent))
        assert found is not None
        return dict(found.checkpoint["channel_values"])


class Savers(RuleBasedStateMachine):
    def __init__(self, sides: list[Side]) -> None:
        super().__init__()
        self.sides = sides
        self.model = Model()
        self.example = next(_examples)
        self.ids = itertools.count(1)
        self.stamps = itertools.count(1)

    def thread(self, name: str) -> str:
        return f"{name}{self.example}"

    def pick(self, thread: str, ns: str, pick: int) -> str | None:
        """A checkpoint: mostly the newest, sometimes an older one, seldom none."""
        ids = self.model.lane(thread, ns)
        if not ids or pick == 50:
            return None
        return ids[-1] if pick < 35 else ids[pick % len(ids)]

    @rule(
        name=THREADS,
        ns=SPACES,
        pick=PICKS,
        steps=st.lists(st.lists(edits(), min_size=1, max_size=3), min_size=1, max_size=5),
        by_task=st.booleans(),
    )
    def run(self, name: str, ns: str, pick: int, steps: list[list[Edit]], by_task: bool) -> None:
        thread = self.thread(name)
        parent = self.pick(thread, ns, pick)
        if parent is None:
            parent = self.put(thread, ns, None, FIRST, by_task)
        for changes in steps:
            parent = self.put(thread, ns, parent, changes, by_task)

    def put(
        self, thread: str, ns: str, parent: str | None, changes: list[Edit], by_task: bool
    ) -> str:
        """One step of a run: its task's writes, if it has any, then the checkpoint."""
        before = self.model.entries.get((thread, ns, parent or ""))
        expected = copy.deepcopy(before.values) if before else {}
        id = f"{next(self.ids):08}"
        stamp = next(self.stamps)
        # Who edits messages in place must return them: only then are they looked at.
        by_task = by_task or any("edit" in change.change for change in changes)
        by_task = by_task and parent is not None
        returned = [(change.channel, apply(expected, change)) for change in changes]
        versions = dict(before.versions) if before else {}
        new = {change.channel: versions.get(change.channel, 0) + 1 for change in changes}
        versions |= new
        metadata = {
            "source": "loop",
            "step": stamp % 4,
            "run_id": f"run {self.example} {stamp % 5}",
            "example": self.example,
        }
        if by_task:
            task = (f"task {stamp}", "path", copy.deepcopy(returned))
            self.model.writes.setdefault((thread, ns, str(parent)), {})[stamp] = task
        self.model.entries[thread, ns, id] = Entry(
            parent, copy.deepcopy(expected), versions, metadata
        )
        for side in self.sides:
            values = side.values(thread, ns, parent)
            own = [(change.channel, apply(values, change)) for change in changes]
            where = config(thread, ns, parent)
            if by_task:
                side.saver.put_writes(where, own, f"task {stamp}", "path")
            side.live[side.turn][thread, ns] = (id, values)
            checkpoint: Any = {
                "v": 4,
                "ts": f"2026-01-01T00:00:00.{id}+00:00",
                "id": id,
                "channel_values": dict(values),
                "channel_versions": dict(versions),
                "versions_seen": {"node": dict(versions)} if by_task else {},
                "updated_channels": sorted(new),
            }
            side.saver.put(where, checkpoint, cast(CheckpointMetadata, dict(metadata)), dict(new))
        return id

    @rule(
        name=THREADS,
        ns=SPACES,
        pick=PICKS,
        task=st.sampled_from(["t1", "t2"]),
        path=st.sampled_from(["", "~a", "~b"]),
        kinds=st.lists(st.sampled_from(["message", "record", "nothing", "nested"]), max_size=2),
        special=st.sampled_from([*SPECIAL, None, None]),
        number=st.integers(0, 9),
    )
    def put_writes(
        self,
        name: str,
        ns: str,
        pick: int,
        task: str,
        path: str,
        kinds: list[str],
        special: str | None,
        number: int,
    ) -> None:
        thread = self.thread(name)
        id = self.pick(thread, ns, pick)
        if id is None:
            return

        def made() -> list[tuple[str, Any]]:
            writes = [(f"channel {n}", make(kind, number)) for n, kind in enumerate(kinds)]
            return [*writes, (special, f"special {number}")] if special else writes

        stored = self.model.writes.setdefault((thread, ns, id), {})
        # One task has one path.
        path = next((p for t, p, _ in stored.values() if t == task), path)
        stored[next(self.stamps)] = (task, path, made())
        for side in self.sides:
            side.saver.put_writes(config(thread, ns, id), made(), task, path)

    @rule(name=THREADS, ns=SPACES, pick=PICKS)
    def get_tuple(self, name: str, ns: str, pick: int) -> None:
        thread = self.thread(name)
        id = self.pick(thread, ns, pick)
        ids = self.model.lane(thread, ns)
        expected = self.model.tell((thread, ns, id or ids[-1])) if ids else None
        for side in self.sides:
            found = side.saver.get_tuple(config(thread, ns, id))
            assert (tell(found) if found else None) == expected
            assert side.saver.get_tuple(config(thread, ns, "00000000-nowhere")) is None

    @rule(
        name=THREADS,
        ns=st.sampled_from(["", "sub:1", None]),
        step=st.sampled_from([None, None, 0, 1]),
        before=PICKS,
        limit=st.sampled_from([None, None, 0, 1, 3]),
    )
    def list_thread(
        self, name: str, ns: str | None, step: int | None, before: int, limit: int | None
    ) -> None:
        thread = self.thread(name)
        edge = self.pick(thread, ns or "", before) if before % 2 else None
        expected = [
            key
            for key in sorted(self.model.entries, key=lambda key: (key[2], key[1]), reverse=True)
            if key[0] == thread
            and (ns is None or key[1] == ns)
            and (edge is None or key[2] < edge)
            and (step is None or self.model.entries[key].metadata["step"] == step)
        ][:limit]
        where: Any = {"configurable": {"thread_id": thread}}
        if ns is not None:
            where["configurable"]["checkpoint_ns"] = ns
        for side in self.sides:
            found = side.saver.list(
                where,
                filter=None if step is None else {"step": step},
                before=config(thread, ns or "", edge) if edge else None,
                limit=limit,
            )
            assert [tell(one) for one in found] == [self.model.tell(key) for key in expected]

    @rule()
    def list_everything(self) -> None:
        def order(key: Key) -> Any:
            return key[2], key[0], key[1]

        keys = sorted(self.model.entries, key=order, reverse=True)
        for side in self.sides:
            found = side.saver.list(None, filter={"example": self.example})
            assert [tell(one) for one in found] == [self.model.tell(key) for key in keys]

    @rule(name=THREADS)
    def delete_thread(self, name: str) -> None:
        thread = self.thread(name)
        self.model.delete({key for key in self.model.entries if key[0] == thread})
        for side in self.sides:
            side.saver.delete_thread(thread)

    @rule(runs=st.sets(st.integers(0, 4), max_size=2))
    def delete_for_runs(self, runs: set[int]) -> None:
        names = [f"run {self.example} {run}" for run in sorted(runs)]
        entries = self.model.entries
        self.model.delete({key for key in entries if entries[key].metadata["run_id"] in names})
        for side in self.sides:
            side.saver.delete_for_runs(names)

    @rule(name=THREADS, other=THREADS)
    def copy_thread(self, name: str, other: str) -> None:
        if name == other:
            return
        here, there = self.thread(name), self.thread(other)
        if any(thread == there for thread, _, _ in self.model.entries):
            for side in self.sides:
                with pytest.raises(perdure.Error, match="already"):
                    side.saver.copy_thread(here, there)
            return
        for (thread, ns, id), entry in list(self.model.entries.items()):
            if thread == here:
                self.model.entries[there, ns, id] = copy.deepcopy(entry)
        for (thread, ns, id), writes in list(self.model.writes.items()):
            if thread == here:
                kept = self.model.writes.setdefault((there, ns, id), {})
                self.model.writes[there, ns, id] = {**copy.deepcopy(writes), **kept}
        for side in self.sides:
            side.saver.copy_thread(here, there)

    @rule(
        names=st.sets(THREADS, min_size=1),
        strategy=st.sampled_from(["keep_latest"] * 3 + ["delete"]),
    )
    def prune(self, names: set[str], strategy: str) -> None:
        threads = sorted(map(self.thread, names))
        doomed = {key for key in self.model.entries if key[0] in threads}
        if strategy == "keep_latest":
            doomed -= {(t, ns, self.model.lane(t, ns)[-1]) for t, ns, _ in doomed}
        self.model.delete(doomed)
        for side in self.sides:
            side.saver.prune(threads, strategy=strategy)

    @rule()
    def the_other_process_goes_on(self) -> None:
        for side in self.sides:
            side.pass_on()

    @rule()
    def restart(self) -> None:
        for side in self.sides:
            side.restart()

    @rule()
    def flush(self) -> None:
        for side in self.sides:
            side.saver.flush()

    def teardown(self) -> None:
        for side in self.sides:
            side.restart()
        self.list_everything()
        for name in "abc":  # so that the next example is not slower
            self.delete_thread(name)


def check(urls: list[str], examples: int, steps: int) -> None:
    sides = [Side(url) for url in urls]
    try:
        run_state_machine_as_test(
            lambda: Savers(sides),  # type: ignore[arg-type]  # any factory will do
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        for side in sides:
            for saver in side.savers:
                saver.close()


def test_random_operations_have_the_outcome_of_a_plain_dict(sqlite_url: str) -> None:
    check([sqlite_url], examples=10, steps=12)


@pytest.mark.slow
def test_many_random_operations_have_the_same_outcome_on_both_databases(
    sqlite_url: str, served_url: str
) -> None:
    few = 8 if served_url.startswith("d1") else 35
    check([sqlite_url, served_url], examples=sweep.examples(140, few), steps=30)
