"""A plan run step by step, so that something else happens between two of its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.journal import Journal, Op, Plan


def interrupted(journal: Journal, plan: Plan[Any], name: str, meanwhile: Callable[[], Any]) -> Any:
    """The result of a plan. `meanwhile` is called once, after its first operation of this name."""
    given, is_over = None, False
    while True:
        try:
            op = plan.send(given)
        except StopIteration as ended:
            assert is_over, f"no operation {name}"
            return ended.value
        assert isinstance(op, Op)
        given = journal.do(op)
        if op.name == name and not is_over:
            is_over = True
            meanwhile()
