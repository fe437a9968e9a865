"""What durability costs an agent whose model takes its time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware

import perdure
from bench.databases import Kind
from bench.report import Series, Table, millis
from bench.rounds import Bench
from matrix.scripted_model import Scripted
from perdure.langchain import Durable

THINKS = 0.2
_NONE = "no durability"


async def look_up(word: str) -> str:
    """Look up a word."""
    return f"what {word} means"


class Idle(AgentMiddleware[Any, Any, Any]):
    """Middleware around the same calls that only passes them on."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


@dataclass(frozen=True, slots=True)
class Way:
    """How the agent is run: durably on a database, or not."""

    name: str
    middleware: Callable[[], AgentMiddleware[Any, Any, Any]] | None = None
    database: Kind | None = None

    async def run(self, url: str, turns: int) -> float:
        """Seconds of a whole run, once everything is warm."""
        around = [] if self.middleware is None else [self.middleware()]
        made: Any = create_agent(_model(turns), [look_up], middleware=around)
        if self.database is None:
            await made.ainvoke(_input())
            start = perf_counter()
            output = await made.ainvoke(_input())
            took = perf_counter() - start
        else:
            async with perdure.Runtime(url) as runtime:
                runtime.register(made, name="agent")
                await runtime.start("agent", _input())
                await runtime.tick()
                start = perf_counter()
                run = await runtime.start("agent", _input())
                await runtime.tick()
                took = perf_counter() - start
                output = (await runtime.get(run.id)).output
        assert len(output["messages"]) == 2 * turns, f"{self.name} lost its way"
        return took


def _model(turns: int) -> Scripted:
    """Asks for its tool in every turn but the last, and takes its time."""
    script = [[("look_up", {"word": f"word {n}"})] for n in range(turns - 1)]
    return Scripted(script=script, shortest=THINKS, longest=THINKS)


def _input() -> dict[str, Any]:
    return {"messages": [("user", "What do these words mean?")]}


def agent(bench: Bench) -> list[Table]:
    turns, rounds = bench.pick(20, 5), bench.pick(9, 3)
    field = bench.field(
        Way(_NONE),
        Way("no durability, idle middleware", Idle),
        Way("perdure SQLite", Durable, "sqlite"),
        Way("perdure PostgreSQL", Durable, "postgres"),
    )

    def trial(who: Way, url: str, thread: str) -> float:
        return asyncio.run(who.run(url, turns))

    found = bench.interleave("agent", field, rounds, trial)
    rows = [
        [
            who.name,
            _percents(found, who.name),
            millis((found.median(who.name) - found.median(_NONE)) / turns),
            millis(found.median(who.name)),
        ]
        for who in field
    ]
    head = ["", "overhead", "per turn", "whole run"]
    return [Table(head, rows)]


def _overheads(found: Series, name: str) -> list[float]:
    """In percent, of each round."""
    return [(ratio - 1) * 100 for ratio in found.ratios(name, _NONE)]


def _percents(found: Series, name: str) -> str:
    each = _overheads(found, name)
    if name == _NONE or not each:
        return "–"
    return f"{median(each):.2f} % ({min(each):.2f} to {max(each):.2f})"
