"""How a task is interrupted, where it finds its answers, and what resumes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.langgraph_port.checkpoint_names import ERROR_SOURCE
from perdure.langgraph_port.configs import SCRATCHPAD

if TYPE_CHECKING:
    from langgraph.types import Command


def watch_interrupts(notice: Callable[[Sequence[Any]], None]) -> None:
    """Each `interrupt()` raises a `GraphInterrupt`, made from its interrupts inside of the task; a
    graph inside a node makes another one of them all. A stop at a breakpoint has none.

    `notice` is called with them. Code that catches the exception cannot undo that.
    """
    from langgraph.errors import GraphInterrupt

    make = GraphInterrupt.__init__

    @functools.wraps(make)
    def noticed(self: GraphInterrupt, interrupts: Sequence[Any] = ()) -> None:
        make(self, interrupts)
        if interrupts:
            notice(interrupts)

    GraphInterrupt.__init__ = noticed  # type: ignore[method-assign]


def interrupt_counter(configurable: Mapping[str, Any]) -> Callable[[], int] | None:
    """A scratchpad counts the interrupts of its task by a callable that gives the next number."""
    return getattr(configurable.get(SCRATCHPAD), "interrupt_counter", None)


def interrupts_so_far(counter: Callable[[], int] | None) -> int:
    """The counter holds the `__next__` of an `itertools.count`, whose repr has the number."""
    following = getattr(counter, "_counter", None)
    return 0 if following is None else int(repr(following.__self__)[len("count(") : -1])


def answers_given(configurable: Mapping[str, Any]) -> list[Any]:
    """A scratchpad holds the answers of its task in a list, which `interrupt()` reads by number."""
    found: list[Any] = configurable[SCRATCHPAD].resume
    return found


def check_strict_resume(
    configurable: Mapping[str, Any], resume: Any, pending: Collection[str]
) -> None:
    """A key of the config makes a graph raise `UnknownInterruptError` for an answer that does not
    say which of the pending interrupts it is for.
    """
    from langgraph.errors import UnknownInterruptError

    if not configurable.get("__pregel_strict_resume"):
        return
    ids = sorted(pending)
    if not isinstance(resume, dict) or any(len(str(key)) != 32 for key in resume):
        if len(ids) > 1:
            raise UnknownInterruptError(
                "When there are multiple pending interrupts, you must specify the interrupt id "
                "when resuming.",
                reason="ambiguous",
                pending_ids=ids,
            )
    elif not resume:
        raise UnknownInterruptError(
            "The resume map names no interrupt", reason="empty_map", pending_ids=ids
        )
    elif unknown := sorted(resume.keys() - pending):
        raise UnknownInterruptError(
            f"Unknown or already-consumed interrupt: {unknown[0]}",
            reason="not_pending",
            interrupt_ids=unknown,
            pending_ids=ids,
        )


def answered_and_pending(writes: Sequence[tuple[str, str, Any]]) -> tuple[set[str], set[str]]:
    """The ids of the interrupts at a checkpoint that were answered, and of those that were not. A
    task that has written its output was answered; the interrupts stay among its writes.
    """
    from langgraph.checkpoint.base import WRITES_IDX_MAP
    from langgraph.checkpoint.serde.types import INTERRUPT

    marks = (*WRITES_IDX_MAP, ERROR_SOURCE)
    finished = {task for task, channel, _ in writes if channel not in marks}
    answered: set[str] = set()
    pending: set[str] = set()
    for task, channel, value in writes:
        if channel == INTERRUPT:
            every = value if isinstance(value, (list, tuple)) else [value]
            (answered if task in finished else pending).update(one.id for one in every)
    return answered, pending


def replaces_tasks(command: Command[Any]) -> bool:
    """The `Send`s of a command take the place of those that wait: their tasks are others then."""
    from langgraph.types import Send

    goto = command.goto if isinstance(command.goto, (list, tuple)) else [command.goto]
    return any(isinstance(to, Send) for to in goto)


def writes_more_than_answer(command: Command[Any]) -> bool:
    """A command becomes writes of the null task, and one that becomes none is an error. Raises what
    LangGraph raises for a command that it does not take."""
    from langgraph.checkpoint.serde.types import RESUME
    from langgraph.pregel._io import map_command

    channels = [channel for _, channel, _ in map_command(command)]
    return any(channel != RESUME for channel in channels)


def resume_nothing() -> Command[Any]:
    """An answer to an interrupt that does not exist resumes a graph. At an old checkpoint `None`
    would not: there it means to run the tasks again, without the answers they have had.
    """
    from langgraph.types import Command

    return Command(resume={"0" * 32: None})
