"""What users import and pass: names of `perdure`, and one way to page."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import perdure
from perdure.testing import runtime
from tests.support.agents import chain


def test_errors_and_types_are_there_after_one_import() -> None:
    code = "import perdure; perdure.errors.NotFound; perdure.types.State; perdure.State.HELD"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_common_errors_and_values_are_those_of_their_modules() -> None:
    for name in ("Error", "NotFound", "ThreadBusy", "WrongState", "AlreadyAnswered", "Expired"):
        assert getattr(perdure, name) is getattr(perdure.errors, name)
    for name in ("Run", "State", "Wait", "Event", "EventKind", "Kind", "Observer"):
        assert getattr(perdure, name) is getattr(perdure.types, name)


def test_every_list_is_paged_by_the_last_item_of_the_page_before() -> None:
    @perdure.effect
    def send(n: int) -> int:
        perdure.outbox("mail", n)
        return n

    with runtime() as rt:
        rt.register(chain(("a", lambda state: {"log": [str(send(n)) for n in range(5)]})), name="g")
        starts = [rt.blocking.start("g", {"log": []}) for _ in range(5)]
        rt.blocking.work(until_idle=True)
        ask, run = rt.blocking, starts[0].id
        for pages in (
            lambda **page: ask.runs(**page),
            lambda **page: ask.effects(**page),
            lambda **page: ask.events(run, **page),
            lambda **page: ask.messages(**page),
        ):
            found: list[Any] = []
            while page := pages(limit=2, **({"after": found[-1]} if found else {})):
                found += page
            assert found == pages(limit=100)
            assert len(found) >= 5
