"""LangMem's background reflections, made durable: each one is a run in the journal.

ReflectionExecutor             replaces LangMem's executor; its queue is the journal
Reflection                     the future that `submit` returns
Pending                        a reflection that has not ended, as `pending()` lists it
resume_pending_reflections     names the store at start-up, and lists what is pending
"""

from __future__ import annotations

try:
    import langmem as _langmem  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError("perdure.langmem needs the extra: pip install 'perdure[langmem]'") from error

from perdure.langmem.executor import ReflectionExecutor
from perdure.langmem.reflection_future import Reflection
from perdure.langmem.resume import resume_pending_reflections
from perdure.service.reflections import Pending

__all__ = ["Pending", "Reflection", "ReflectionExecutor", "resume_pending_reflections"]
