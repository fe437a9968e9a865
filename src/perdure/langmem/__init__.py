"""Memory work that survives the process: a durable executor for LangMem's reflections.

ReflectionExecutor             LangMem's, with its queue in a journal
resume_pending_reflections     take up what was pending when a process ended
persist                        LangMem's own, with its queue in a store you have
"""

from __future__ import annotations

try:
    import langmem as _langmem  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError("perdure.langmem needs the extra: pip install 'perdure[langmem]'") from error

from perdure.langmem.driving import Reflection
from perdure.langmem.executor import ReflectionExecutor
from perdure.langmem.kept import Persisted, persist, resume_pending_reflections
from perdure.service.reflections import Pending

__all__ = [
    "Pending",
    "Persisted",
    "Reflection",
    "ReflectionExecutor",
    "persist",
    "resume_pending_reflections",
]
