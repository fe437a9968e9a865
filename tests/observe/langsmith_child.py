"""A worker with LangSmith that is killed: `drive`, a child of `tests.support.fork_server`."""

from __future__ import annotations

import contextlib
import os
import signal
from datetime import timedelta
from typing import Any

from langsmith import Client
from urllib3.util import Retry

import perdure
from perdure.observe import LangSmith, trace_exporter
from perdure.testing import Clock, TemporaryRuntime, crash_at
from tests.support.agents import NOON, Log, chain
from tests.support.fork_server import Tell
from tests.support.polling import auntil
from tests.support.raw import execute


@perdure.effect
def send_mail(to: str, body: str) -> str:
    return f"sent to {to}"


def write(state: Log) -> Log:
    perdure.label(stage="written")
    return {"log": [send_mail("ada@example.com", "the secret plan")]}


def ask(state: Log) -> Log:
    return {"log": [perdure.ask("go on?")]}


def both(state: Log) -> Log:
    """The mail is sent before the question, and not again after the answer."""
    return {"log": [send_mail("ada@example.com", "a plan"), perdure.ask("go on?")]}


def sink(url: str, **options: Any) -> LangSmith:
    """What sends to a stand-in, which it asks once each time."""
    client = Client(url, api_key="key", auto_batch_tracing=False, retry_config=Retry(0), **options)
    return LangSmith(client, project="agents")


def hurry() -> None:
    """Export at once, and try again at once."""
    trace_exporter.GATHER = 0.0
    trace_exporter.PAUSE = 0


def due(url: str) -> int:
    """How many traces are still to be given."""
    [[count]] = execute(url, "SELECT COUNT(*) FROM perdure_traces WHERE due_at IS NOT NULL")
    return int(count)


async def exported(rt: Any, url: str) -> None:
    """Wait until LangSmith was given all."""

    def is_given() -> bool:
        rt.engine.observers.call("nudge")
        return due(url) == 0

    await auntil(is_given, "the export")


class Killed(LangSmith):
    """One whose process dies when LangSmith has what it was given, and it is not noted."""

    def give(self, runs: Any) -> bool:
        given = super().give(runs)
        if given:
            os.kill(os.getpid(), signal.SIGKILL)
        return given


async def drive(order: dict[str, Any], tell: Tell) -> None:
    """Drive what is due, and export it. `dies`: where."""
    hurry()
    made = sink(order["langsmith"])
    if order["dies"] == "given":
        made = Killed(made._client, project="agents")
    clock = Clock(NOON + timedelta(minutes=order["minutes"]))
    point = crash_at(order["dies"]) if order["dies"].startswith("effect") else None
    async with TemporaryRuntime(order["url"], clock=clock, observe=made) as rt:
        rt.register(chain(write, ask), name="g")
        with point or contextlib.nullcontext():
            await rt.tick()
        await exported(rt, order["url"])
