"""A journal in which every text from people or models is an attack on the page that shows it.

    fill(rt, seeds=range(12))

Each seed is a family of runs. Field F of seed S holds the payload number S + crc32(F), so a few
seeds try many payloads in each field, and as many seeds as payloads try every payload in every
field. The runs of a seed end in every state that a page shows.
"""

from __future__ import annotations

import asyncio
import json
import operator
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

import perdure
from perdure.commands import tokens
from perdure.commands.workers import WorkerRow, announce
from perdure.langmem import ReflectionExecutor
from perdure.times import milliseconds
from perdure.types import Actor, Message, Retry, State
from tests.support.polling import until
from tests.support.xss import LONG, NUL, PAYLOADS, as_name

ONCE = Retry(attempts=1)
DAY = timedelta(days=1)
RESERVED = str.maketrans("|:", "__")
"""LangGraph allows neither in the name of a node."""


NO_TEMPLATE = str.maketrans("{}.", "()_")
"""A namespace has other parts, and is a template."""


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    said: Annotated[list[Any], operator.add]
    notes: dict[str, Any]


class Seed:
    """The texts of one family of runs, and its graphs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.graph = f"{self.name('graph')} {number}".replace("@", "(at)")
        self.thread = f"{self.name('thread')} {number}"

    def text(self, field: str) -> str:
        """A value: any text."""
        return PAYLOADS[(self.number + zlib.crc32(field.encode())) % len(PAYLOADS)]

    def name(self, field: str) -> str:
        """A short text without NUL."""
        return as_name(self.text(field))

    def pair(self, field: str) -> dict[str, Any]:
        """A dict whose key and value attack."""
        key, value = self.text(f"{field} key"), self.text(f"{field} value")
        return {key: value, "nested": [{key: [value]}], "plain": 1}

    # -- what the nodes of its runs do

    def work(self, state: Talk) -> Talk:
        """Effects that succeed and fail, labels, prompts, the outbox; and a chat of all this."""
        perdure.label(**{self.text("label name"): self.text("label value")})
        prompt = perdure.prompt(self.name("prompt"), self.text("prompt text"))
        result = self._effect("effect", lambda to, more: self.pair("effect result"))(
            self.text("effect argument"), more=self.pair("effect argument")
        )

        def refuse(to: str, more: Any = None) -> None:
            raise ValueError(self.text("effect error"))

        with suppress(ValueError, perdure.EffectFailed):
            self._effect("failed effect", refuse, retry=ONCE)(self.text("failed argument"))
        perdure.outbox(self.name("topic"), self.pair("message"))
        called = {"name": self.name("tool"), "args": self.pair("tool argument"), "id": "call-1"}
        said: list[AnyMessage] = [
            AIMessage(f"{self.text('model')}\n\n{prompt}", tool_calls=[called], id="a"),
            ToolMessage(self.text("tool result"), tool_call_id="call-1", id="b"),
            AIMessage([{"type": "text", "text": self.text("model part")}], id="c"),
        ]
        notes = {"nul": NUL, "long": LONG, "result": result}
        return {"messages": said, "notes": notes, "said": [self.text("state")]}

    def _effect(
        self, field: str, function: Callable[..., Any], **options: Any
    ) -> Callable[..., Any]:
        return perdure.effect(name=f"{self.name(field)} {self.number}", **options)(function)

    def ask_plainly(self, state: Talk) -> Talk:
        return {"said": [interrupt(self.text("plain question"))]}

    def ask_with_keys(self, state: Talk) -> Talk:
        return {"said": [interrupt(self.pair("question"))]}

    def ask_as_agent_inbox(self, state: Talk) -> Talk:
        action = {"action": self.text("action"), "args": self.pair("action argument")}
        allowed = dict.fromkeys(("accept", "edit", "respond", "ignore"), True)
        request = {
            "action_request": action,
            "config": {f"allow_{one}": True for one in allowed},
            "description": self.text("description"),
        }
        return {"said": [interrupt([request])]}

    def ask_as_middleware(self, state: Talk) -> Talk:
        names = [self.text("first tool"), self.text("second tool")]
        requests = [
            {"name": one, "args": self.pair(f"argument {n}"), "description": self.text(f"says {n}")}
            for n, one in enumerate(names)
        ]
        decisions = ["approve", "edit", "reject", "respond"]
        configs = [{"action_name": one, "allowed_decisions": decisions} for one in names]
        asked = {"action_requests": requests, "review_configs": configs}
        return {"said": [interrupt(asked)]}

    def ask_with_schema(self, state: Talk) -> Talk:
        text: dict[str, Any] = {
            "type": "string",
            "title": self.text("title"),
            "default": self.text("default"),
        }
        text |= {"description": self.text("help"), "examples": [self.text("example")]}
        schema = {
            "type": "object",
            "title": self.text("schema title"),
            "description": self.text("schema description"),
            "properties": {
                "choice": {"enum": [self.text("choice"), "no"], "title": self.text("choice title")},
                "several": {"type": "array", "items": {"enum": [self.text("several"), "none"]}},
                self.text("property"): text,
                "amount": {"type": "number", "title": self.text("amount title")},
                "sure": {"type": "boolean", "description": self.text("boolean help")},
            },
            "required": ["choice"],
        }
        return {"said": [perdure.ask(self.pair("asked"), response_schema=schema, expires=DAY)]}

    def listen(self, state: Talk) -> Talk:
        return {"said": [perdure.wait_for(self.name("signal"), timeout=DAY)]}

    def fail(self, state: Talk) -> Talk:
        raise RuntimeError(self.text("error"))

    def lose_track(self, state: Talk) -> Talk:
        def vanish(to: str) -> None:
            raise OSError(self.text("unknown error"))

        lost = self._effect("unknown effect", vanish, unknown="hold", retry=ONCE)
        return {"said": [lost(self.text("unknown argument"))]}

    # -- its graphs, and its runs

    def graphs(self) -> dict[str, StateGraph[Any, Any, Any, Any]]:
        asking = [self.ask_plainly, self.ask_with_keys, self.ask_as_agent_inbox]
        asking += [self.ask_as_middleware, self.ask_with_schema]
        main: StateGraph[Any, Any, Any, Any] = StateGraph(Talk)
        first = f"{self.text('node').translate(RESERVED)} {self.number}"
        main.add_node(first, self.work)
        main.add_edge(START, first)
        for ask in asking:
            main.add_node(ask.__name__, ask)
            main.add_edge(first, ask.__name__)
        return {
            self.graph: main,
            f"listens {self.number}": _single(self.listen),
            f"fails {self.number}": _single(self.fail),
            f"loses {self.number}": _single(self.lose_track),
        }

    async def start(self, rt: perdure.Runtime) -> None:
        """Accept every run of this seed."""
        for name, graph in self.graphs().items():
            rt.register(graph, name=name, retry=ONCE)
        rt.deliver(self.name("topic"), self._refuse)
        options: Any = {
            "metadata": {**self.pair("metadata"), "who": self.text("metadata plain")},
            "tags": [self.text("tag")],
            "config": {"configurable": self.pair("configurable")},
            "key": self.name("key"),
        }
        given = {"messages": [HumanMessage(self.text("input"), id="h")]}
        await rt.start(self.graph, given, thread_id=self.thread, **options)
        for kind in ("listens", "fails", "loses"):
            thread = f"{self.thread} {kind}"
            await rt.start(f"{kind} {self.number}", {}, thread_id=thread, **options)
        stopped = f"{self.thread} stopped"
        run = await rt.start(f"listens {self.number}", {}, thread_id=stopped, **options)
        await rt.cancel(run.id, reason=self.text("reason"), by=self.name("canceller"))

    async def change(self, rt: perdure.Runtime) -> None:
        """Change every unfinished run, for live updates."""
        for suffix in ("", " listens", " loses"):
            [run] = await rt.runs(thread_id=f"{self.thread}{suffix}", output=False)
            if run.state is State.PAUSED:
                await rt.resume(run.id, by=self.name("resumed by"))
            elif run.state is State.WAITING:
                await rt.pause(run.id, by=self.name("paused by"))
            await rt.comment(run.id, self.text("live comment"), by=self.name("live by"))

    def reflect_on(self, rt: perdure.Runtime) -> None:
        """A reflection that fails, and one that is not due."""

        def reflect(payload: Any) -> None:
            raise ValueError(self.text("reflection error"))

        name = f"{self.name('executor')} {self.number}".replace("@", "(at)")
        namespace = ("notes", self.name("namespace").translate(NO_TEMPLATE))
        options: Any = {"store": InMemoryStore(), "journal": rt, "name": name, "retry": ONCE}
        config: Any = {"configurable": {"user": self.text("user"), "thread_id": self.name("talk")}}
        said = {"messages": [HumanMessage(self.text("reflected"), id="r")]}
        with ReflectionExecutor(reflect, namespace, **options) as executor:
            executor.submit(said, config)
            later: Any = {"configurable": {**config["configurable"], "user": "other"}}
            executor.submit(said, later, thread_id="later", after_seconds=86_400)
            until(lambda: any(one.error for one in executor.pending()), "a failed reflection")

    async def announce(self, rt: perdure.Runtime) -> None:
        """An announced worker that was asked to drain."""
        now, id = milliseconds(await rt.now()), f"{self.name('worker')} {self.number}"
        graphs = json.dumps([self.name("driven graph")])
        row = WorkerRow(id, self.name("host"), self.number, graphs, 5, now, now)
        await rt.journal.ado(announce(row, is_new=True))
        if self.number % 2:
            await rt.drain(id, by=Actor(self.name("drained by"), via="browser"))

    def _refuse(self, message: Message) -> None:
        raise OSError(self.text("delivery error"))

    async def decide(self, rt: perdure.Runtime) -> None:
        """What people add while runs wait: scores, answers, signals, schedules."""
        [run] = await rt.runs(thread_id=self.thread)
        who = self.name("who")
        await rt.score(run.id, self.name("score"), 0.5, comment=self.text("comment"), by=who)
        category = self.name("category")
        await rt.score(run.id, self.name("scored"), category, about=self.name("about"))
        waits = await rt.waits(run_id=run.id, kind="human")
        plain = next(one for one in waits if one.value == self.text("plain question"))
        await rt.answer(plain.id, self.text("answer"), by=who)
        for n, wait in enumerate(one for one in waits if one.id != plain.id):
            await rt.assign(wait.id, self.name(f"assignee {n}"), by=self.name("assigner"))
            await rt.comment(run.id, self.text(f"note {n}"), wait_id=wait.id, by=who)
        await rt.comment(run.id, self.text("remark"), by=Actor(who, address=self.name("address")))
        for kind in ("", " listens"):
            value = self.pair("signal value")
            await rt.signal(f"{self.thread}{kind}", self.name("other signal"), value)
        name, metadata = f"{self.name('schedule')} {self.number}", self.pair("schedule")
        await rt.schedule(name, self.graph, cron="0 9 * * 1", input={}, metadata=metadata)
        token = f"{self.name('token')} {self.number}"
        await rt.journal.arun(tokens.create(rt.engine, token, ["read"]))


def _single(node: Any) -> StateGraph[Any, Any, Any, Any]:
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Talk)
    graph.add_node(node.__name__, node)
    graph.add_edge(START, node.__name__)
    return graph


async def fill(rt: perdure.Runtime, numbers: Iterable[int]) -> list[Seed]:
    """Start the families of runs in a journal, and drive each run until it rests."""
    seeds = [Seed(number) for number in numbers]
    for seed in seeds:
        await seed.start(rt)
    while (await rt.tick(limit=1000)).claimed:
        pass
    for seed in seeds:
        await seed.decide(rt)
        await seed.announce(rt)
        await asyncio.to_thread(seed.reflect_on, rt)
    return seeds
