"""LangMem's background reflections, made durable: each one is a run in the journal.

ReflectionExecutor             replaces LangMem's executor; its queue is the journal
LocalReflectionExecutor        the same, with the arguments of LangMem's class of this name
Reflection                     the future that `submit` returns
Pending                        a reflection that has not ended, as `pending()` lists it
resume_pending_reflections     names the store at start-up, and lists what is pending
"""

from __future__ import annotations

from perdure.errors import needs_extra

try:
    import langmem as _langmem  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(needs_extra("perdure.langmem", "langmem")) from error

from perdure.commands.reflections import Pending
from perdure.langmem.background_worker import Reflection
from perdure.langmem.executor import (
    LocalReflectionExecutor,
    ReflectionExecutor,
    resume_pending_reflections,
)

__all__ = [
    "LocalReflectionExecutor",
    "Pending",
    "Reflection",
    "ReflectionExecutor",
    "resume_pending_reflections",
]
