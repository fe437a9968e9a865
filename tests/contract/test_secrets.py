"""Values that a policy names, and arguments named like secrets, are never stored."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import operator
import re
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict
from urllib.parse import quote

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from pydantic import SecretStr

import perdure
from perdure.testing import Clock
from perdure.types import Message, Retry
from tests.support.agents import Log, chain, opened
from tests.support.effects import AT_ONCE, Boom, Cut, raw, settled, started
from tests.support.fork_server import Ended, ForkServer, Tell
from tests.support.raw import Database
from tests.support.runtime_child import BEGIN, killed_at

POLICY = perdure.Redaction(
    keys=["pin", "*_pin"], patterns=[r"PLANTED-[a-z]{1,20}+/ü[0-9a-f]{12}"], replace="[gone]"
)
GONE = POLICY.replace


def by_pattern(place: str) -> str:
    """A secret that a pattern finds. In JSON, in base64 and in a URL it looks different."""
    return f"PLANTED-{place}/ü7f3a9c2e41b6"


def by_key(place: str) -> str:
    """A secret that only its name gives away."""
    return f"hush {place} ü"


@dataclass
class Card:
    holder: str
    card_pin: str


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[Any], operator.add]
    note: str
    pin: str
    card: Card
    book: dict[str, Any]


class Context(TypedDict):
    hint: str


CALLS: list[list[Any]] = []


@perdure.effect(unknown="retry")
def mail(to: str, pin: str, more: dict[str, Any]) -> Any:
    CALLS.append([to, pin, more["x_pin"], more["plain"]])
    return {"found": f"id {by_pattern('result')}", "pin": by_key("result"), "raw": b"ok"}


@perdure.effect(retry=perdure.Retry(attempts=1))
def refused(to: str, pin: str) -> Any:
    raise RuntimeError(f"{by_pattern('raised')} for {pin!r}, card_pin={by_key('text')!r}")


def first(state: State) -> State:
    perdure.label(about=by_pattern("label"), pin=by_key("label"))
    more = {"x_pin": by_key("nested"), "plain": [by_pattern("nested")]}
    found = mail(by_pattern("argument"), pin=by_key("argument"), more=more)
    seen = [found["found"], found["pin"], state["messages"][0].content]
    return {
        "messages": [AIMessage(f"I know {by_pattern('message')}", id="one")],
        "seen": seen,
        "note": by_pattern("state") + " and more" * 20,
        "pin": by_key("state"),
        "card": Card(by_pattern("object"), by_key("object")),
        "book": {"pin": by_key("book"), by_pattern("key"): "a" * 100},
    }


SETTINGS: list[Any] = []
"""What a node sees besides its state."""


def second(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> State:
    SETTINGS.append([config["configurable"].get("who"), config["metadata"].get("why")])
    SETTINGS[-1].append(runtime.context["hint"])
    with contextlib.suppress(RuntimeError):
        refused(by_pattern("tried"), by_key("tried"))
    perdure.outbox("mail", {"to": by_pattern("outbox"), "pin": by_key("outbox")})
    seen = [state["messages"][1].content, state["note"][:9], state["pin"], state["card"].card_pin]
    return {"seen": [*seen, state["card"].holder, sorted(state["book"]), ""]}


def third(state: State) -> State:
    answer = perdure.ask({"draft": by_pattern("question"), "pin": by_key("question")})
    return {"seen": [answer["text"], answer["pin"], perdure.wait_for("news")]}


def fourth(state: State) -> State:
    raise ValueError(f"{by_pattern('error')} pin: {by_key('error')}" + "." * 5000)


def sequence(*nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(State, Context)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0].__name__)
    return graph


def register(rt: perdure.Runtime) -> None:
    rt.register(sequence(first, second, third), name="plant")
    rt.register(sequence(fourth), name="fails", retry=perdure.Retry(attempts=1))
    rt.register(sequence(fourth), name="held", retry=perdure.Retry(1), hold=True)
    rt.deliver("mail", deliver)


def deliver(message: Message) -> None:
    raise OSError(f"not now: {message.payload} {by_pattern('delivery')}")


class Tap:
    """An observer that writes down everything it gets."""

    def on_event(self, *event: Any) -> None:
        logging.getLogger("tap").info("told %s", event)


async def play(rt: perdure.Runtime, clock: Clock, order: dict[str, Any], tell: Tell) -> None:
    thread = order["thread"]
    given: Any = {"metadata": {"why": by_pattern("metadata"), "pin": by_key("metadata")}}
    given["config"] = {"configurable": {"who": by_pattern("config"), "user_id": "u-1"}}
    run = await rt.start(
        "plant",
        {"messages": [HumanMessage(f"I am {by_pattern('input')}")], "pin": by_key("input")},
        thread_id=thread,
        key="the one",
        tags=[by_pattern("tag")],
        context={"hint": by_pattern("context")},
        **given,
    )
    while not (run := await rt.get(run.id)).ended:
        await rt.tick()
        for wait in await rt.waits(thread_id=thread):
            if wait.kind == perdure.Kind.HUMAN:
                text = {"text": by_pattern("answer"), "pin": by_key("answer")}
                await rt.answer(wait.id, text, by="ada")
            else:
                await rt.signal(thread, "news", by_pattern("signal"), key="once")
        clock.advance(timedelta(minutes=1))
    tell("seen", run.output["seen"])
    tell("metadata", run.metadata)
    await rt.score(run.id, "good", 1, comment=by_pattern("comment"), by="ada")
    for graph in ("fails", "held"):
        await rt.start(graph, {"seen": []}, thread_id=f"{thread}-{graph}", key="1")
        await rt.tick()
    [held] = await rt.runs(thread_id=f"{thread}-held")
    await rt.cancel(held.id, reason=by_pattern("reason"))
    given_note = {"note": by_pattern("scheduled")}
    await rt.schedule("yearly", "plant", cron="0 0 1 1 *", input=given_note)
    await rt.tick()
    bound = rt.register(sequence(second), name=f"bound-{thread}")
    config: Any = {"configurable": {"thread_id": f"{thread}-bound", "who": by_pattern("inline")}}
    config |= {"metadata": {"why": by_pattern("inline")}, "tags": [by_pattern("inline")]}
    card = Card(by_pattern("bound"), by_key("bound"))
    start = {
        "messages": ["a", by_pattern("bound")],
        "card": card,
        "book": {},
        "note": "",
        "pin": "",
    }
    context: Any = {"hint": by_pattern("inline")}
    given_back = await bound.ainvoke(start, config, context=context)
    tell("bound", given_back["seen"], SETTINGS)
    await bound.aupdate_state(config, {"note": by_pattern("updated")}, as_node="second")
    tell("findings", [str(finding) for finding in (await rt.doctor()).findings])


async def drive_planted(order: dict[str, Any], tell: Tell) -> None:
    logging.basicConfig(filename=order["lines"], level=logging.DEBUG, force=True)
    clock = Clock(BEGIN + timedelta(days=1 if order["again"] else 0))
    rt = perdure.Runtime(order["url"], clock=clock, redact=POLICY, observe=Tap())
    register(rt)
    async with rt:
        with killed_at(order["kill"]):
            await play(rt, clock, order, tell)
        tell("calls", CALLS)


SOURCE = Path(__file__).read_text()


PLANTED = [
    *(by_pattern(place) for place in re.findall(r"by_pattern\(['\"](\w+)", SOURCE)),
    *(by_key(place) for place in re.findall(r"by_key\(['\"](\w+)", SOURCE)),
]


def forms(secret: str) -> set[bytes]:
    """A secret as it may be written: also inside of base64, at any offset."""
    data = secret.encode()
    found = {data, json.dumps(secret)[1:-1].encode(), quote(secret).encode()}
    found |= {quote(secret, safe="").encode(), repr(data)[2:-1].encode(), data.hex().encode()}
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + data).rstrip(b"=")
        found.add(encoded[4 if shift else 0 : -2])
    return found


def contents(url: str, folder: Path) -> bytes:
    """Everything that the journal, and the log, has."""
    files = b"".join(one.read_bytes() for one in folder.iterdir() if one.is_file())
    if url.startswith("sqlite"):
        return files  # with its WAL
    names = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'perdure_%'"
    with closing(Database(url)) as database:
        rows = [database.execute(f"SELECT * FROM {name}") for (name,) in database.execute(names)]
    values = [value for table in rows for row in table for value in row]
    assert len(rows) > 10
    assert any(isinstance(value, bytes) for value in values)
    return files + b"\n".join(
        value if isinstance(value, bytes) else str(value).encode() for value in values
    )


def live(
    server: ForkServer,
    url: str,
    folder: Path,
    thread: str,
    kill: Any = None,
    *,
    again: bool = False,
) -> Ended:
    lines = str(folder / "log.txt")
    order: dict[str, Any] = {"url": url, "thread": thread, "kill": kill, "again": again}
    ended = server.run(drive_planted, lines=lines, **order)
    assert ended.status == (-9 if kill else 0)
    return ended


SEEN = [
    *(f"id {GONE}", GONE, f"I am {GONE}", f"I know {GONE}", f"{GONE} an", GONE, GONE, GONE),
    *([GONE, "pin"], "", GONE, GONE, GONE),
]
"""What the nodes of a run see."""


CALL = [by_pattern("argument"), by_key("argument"), by_key("nested"), [by_pattern("nested")]]
"""What an effect is called with, also when it is called again with the arguments on record."""


KILLS = [["effect mail.after", 1], ["insert_checkpoint.after", 4], ["insert_wait.before", 1]]


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_planted_secrets_are_found_nowhere_and_a_crash_changes_nothing_that_nodes_see(
    fork_server: ForkServer, request: pytest.FixtureRequest, tmp_path: Path, database: str
) -> None:
    url: str = request.getfixturevalue(f"{database}_url")
    assert len(PLANTED) > 40
    for number, kill in enumerate([None, *KILLS]):
        thread = f"t{number}"
        if kill is not None:
            live(fork_server, url, tmp_path, thread, kill)
        ended = live(fork_server, url, tmp_path, thread, again=kill is not None)
        assert ended.one("seen") == SEEN
        assert ended.one("metadata") == {"why": GONE, "about": GONE, "pin": GONE}
        _, settings = ended.one("bound")
        assert [one for one in settings if one != [GONE, GONE, GONE]] == []
        assert settings
        assert ended.one("findings") == []
        calls = ended.one("calls")
        assert [one for one in calls if one != CALL] == []
        assert len(calls) == 1 or number > 1
    everything = contents(url, tmp_path)
    assert GONE.encode() in everything
    found = {secret for secret in PLANTED if any(form in everything for form in forms(secret))}
    assert found == set()


SECRET = "hunter2-very-secret"


@pytest.mark.parametrize("sync", [True, False])
async def test_secrets_are_in_no_row_and_come_from_the_present_call(url: str, sync: bool) -> None:
    seen: list[tuple[str, str, str]] = []
    errors: list[BaseException] = [
        Boom(f"401 for {SECRET}", SECRET),
        perdure.NotDone(f"refused {SECRET}"),
        Cut(),
    ]

    def call(to: str, api_key: str, other: SecretStr) -> str:
        seen.append((to, api_key, other.get_secret_value()))
        if errors:
            raise errors.pop(0)
        return "sent"

    retry = Retry(attempts=9, first=AT_ONCE.first)
    if sync:
        send = perdure.effect(name="send", retry=retry)(call)

        def plain(state: Log) -> Log:
            return {"log": [send("ana", SECRET, SecretStr(SECRET))]}

        node: Any = plain
    else:

        @perdure.effect(name="send", retry=retry)
        async def asend(to: str, api_key: str, other: SecretStr) -> str:
            return call(to, api_key, other)

        async def coroutine(state: Log) -> Log:
            return {"log": [await asend("ana", SECRET, SecretStr(SECRET))]}

        node = coroutine
    async with opened(url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"] == ["sent"]
        assert seen == [("ana", SECRET, SECRET)] * 4
        [effect] = await rt.effects(run.id)
        assert effect.arguments == {"to": "ana"}
        assert len(await settled(rt, run)) == 3
        rt.saver.flush()
        stored = raw(url)
        assert b"ana" in stored
        assert SECRET.encode() not in stored
