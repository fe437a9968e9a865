"""`resume_pending_reflections`: continue after a restart, with the store named at start-up."""

from __future__ import annotations

from langgraph.store.base import BaseStore

from perdure.errors import BadArgument
from perdure.langmem.executor import ReflectionExecutor
from perdure.service.reflections import Pending


def resume_pending_reflections(executor: ReflectionExecutor, store: BaseStore) -> list[Pending]:
    """Resume the reflections that were pending when a process ended, and return them.

    Overdue reflections start at once, the others when they are due. The journal hands each
    reflection to one worker, so calling this twice, or in two processes, runs nothing twice.

    An executor created with a store resumes by itself. This call gives `store` to one without.
    """
    if not isinstance(executor, ReflectionExecutor):
        raise BadArgument(
            f"{executor!r} keeps its reflections in memory, so none are left to resume. Create the "
            "executor with perdure.langmem.ReflectionExecutor(reflector, journal=...)."
        )
    if not isinstance(store, BaseStore):
        raise BadArgument(f"store={store!r} is not a LangGraph BaseStore: pass one, or a subclass.")
    executor.use(store)
    found: list[Pending] = []
    while page := executor.pending(after=found[-1] if found else None):
        found += page
    return found
