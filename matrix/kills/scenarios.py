"""What happens in a trial: which runs are started, what a person does, and what must be true then.

Any process can play a scenario from where the last one died: it looks only at the journal and at
the world.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import perdure
from matrix.kills import assistant, orders
from matrix.kills.world import World
from perdure.errors import AlreadyAnswered, Error
from perdure.testing import Clock
from perdure.types import EffectRecord, Kind, Run, State, Wait

PATIENCE = 100
"""Rounds of driving and answering after which a run that has not ended is stranded."""


@dataclass(frozen=True)
class Scenario:
    """One agent, and what has to come of it."""

    graphs: dict[str, Callable[[perdure.Runtime], Any]]
    runs: dict[str, Any]
    """Graph → input; each is started once."""
    ends: dict[str, str]
    """Graph → state in which its runs end, children among them."""
    happens: Counter[str]
    """What must have happened, how often."""
    result: Callable[[dict[str, Any]], list[Any]]
    """What to compare of the runs' outputs, once all have ended."""


def _lines(output: Any) -> list[str]:
    return sorted(f"{line} ({n})" for line, n in Counter(output["log"]).items())


_WORDS = ("note {}", "order {}", "wire {}", "gathered {}", "errand {}", "errand of {} is done")
_TO_PEOPLE = [words.format(who) for words in _WORDS for who in orders.PEOPLE]
ORDERS = Scenario(
    graphs={
        "orders": orders.orders,
        "errand": orders.errand,
        "trip": orders.trip,
        "guide": orders.guide,
    },
    runs={"orders": {"log": [], "turn": 0}, "trip": {"log": []}},
    ends={"orders": "done", "errand": "done", "trip": "cancelled", "guide": "cancelled"},
    happens=Counter(
        {
            **dict.fromkeys(_TO_PEOPLE, 1),
            "the same note": 3,
            "the same wire": 2,
            "the same order": 2,
            "poke ann": 2,
            "nudge bob": 2,
            **{f"part {n}": 1 for n in range(3)},
            "greet eve": 1,
            **{f"draft {n}": 1 for n in range(orders.TURNS)},
            **{f"send {n} yes": 1 for n in range(orders.TURNS)},
            "wire before": 1,
            "wire after": 1,
            "slow": 1,
            "before the sleep": 1,
            "booked 12a": 1,
            "answer hello": 1,
            "pay": 1,
            "guide": 1,
            "refund guide": 1,
            "deposit": 1,
            "refund pay": 1,
            "take back deposit": 1,
        }
    ),
    result=lambda outputs: _lines(outputs["orders"]),
)
ASSISTANT = Scenario(
    graphs={"assistant": assistant.assistant},
    runs={"assistant": {"messages": [{"role": "user", "content": "Do it all.", "id": "m1"}]}},
    ends={"assistant": "done"},
    happens=Counter(
        {
            "remind ann": 2,
            "remind dan": 1,
            "transfer bob": 2,
            "transfer cat": 1,
            "purchase lamp": 2,
        }
    ),
    result=lambda outputs: [
        [message.type, str(message.content)] for message in outputs["assistant"]["messages"]
    ],
)
SCENARIOS = {"orders": ORDERS, "assistant": ASSISTANT}


class Performer:
    """Plays a scenario with one runtime, and acts as the person in it."""

    def __init__(self, scenario: Scenario, rt: perdure.Runtime, clock: Clock, world: World) -> None:
        self._scenario, self._rt, self._clock, self._world = scenario, rt, clock, world
        self.strange: list[str] = []
        """Held runs about which there was nothing to settle."""

    async def play(self, moved: Callable[[], None]) -> list[Run]:
        """Bring every run to its end, and say how each ended. `moved` is called when the clock
        was."""
        runs: list[Run] = []
        for graph, given in self._scenario.runs.items():
            await self._rt.start(graph, given, thread_id=f"the {graph}", key="once")
        for _ in range(PATIENCE):
            await self._rt.tick(10_000)
            runs = await self._rt.runs()
            under_way = [run for run in runs if not run.ended]
            if not under_way and not await self._rt.messages():
                break
            acted = [await self._act(run) for run in under_way]
            if any(acted):
                continue
            due = [run.due_at for run in under_way if run.due_at is not None]
            due += [self._clock.time + timedelta(minutes=1)] * bool(await self._rt.messages())
            if not due:
                break  # no process will reach it
            self._clock.move_to(max(self._clock.time + timedelta(milliseconds=1), min(due)))
            moved()
        return runs

    async def _act(self, run: Run) -> bool:
        """Do what a person would do about a run now."""
        if run.state is State.HELD:
            unknown = await self._rt.effects(run.id, state="unknown")
            for effect in unknown:
                await self._settle(effect)
            if not unknown:
                self.strange.append(f"{run.graph} is held, and nothing is unknown: {run.reason}")
            return bool(unknown)
        if run.state is not State.WAITING:
            return False
        acted = False
        for wait in await self._rt.waits(run_id=run.id):
            if wait.kind is Kind.SIGNAL and wait.name == "reply":
                await self._rt.signal(run.thread_id, wait.name or "", "hello", key=wait.id)
                acted = True
            elif wait.kind is Kind.HUMAN and run.graph == "trip":
                await self._rt.cancel(run.id, by="a person")
                acted = True
            elif wait.kind is Kind.HUMAN:
                await self._answer(wait)
                acted = True
        return acted

    async def _answer(self, wait: Wait) -> None:
        asked: Any = wait.value
        answer: Any = "yes"
        if isinstance(asked, dict) and "action_requests" in asked:
            answer = {"decisions": [{"type": "approve"} for _ in asked["action_requests"]]}
        with contextlib.suppress(AlreadyAnswered):
            await self._rt.answer(wait.id, answer, by="a person")

    async def _settle(self, effect: EffectRecord) -> None:
        """Look into the world, and say what is there."""
        try:
            if self._world.knows(effect.key):
                await self._rt.settle(effect.key, "done", _result(effect), by="a person")
            else:
                await self._rt.settle(effect.key, "retry", by="a person")
        except Error as error:
            self.strange.append(f"settling {effect.key}: {type(error).__name__}: {error}")


def _result(effect: EffectRecord) -> str:
    """What the call would have returned."""
    if effect.name == "tool transfer":
        return f"{effect.arguments['to']} paid."
    return f"{effect.arguments.get('what')}: done"
