"""What `submit` stores of a reflection, and which earlier one it replaces.

Stored are the payload, the namespace and the caller's config. The reflections of one conversation
in one namespace share a thread, and a run is started there with the strategy `replace`: one batch
cancels the run that has not begun and inserts the new one. A running reflection is not touched; the
new one follows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langmem.utils import NamespaceTemplate

from perdure.commands.reflections import PREFIX
from perdure.errors import BadArgument
from perdure.langmem.langmem_port import labels_of, variables_of
from perdure.stores import storable_entries
from perdure.verbs import check_text

Namespace = tuple[str, ...]
LONGEST_DELAY = 100 * 365 * 86_400  # longest `after_seconds`: a hundred years

# Default of `submit(thread_id=...)`; None means a reflection without a conversation.
FROM_CONFIG: Any = object()


@dataclass(frozen=True)
class ReflectionRequest:
    """A submitted reflection as plain data: enough to run it in another process, weeks later."""

    payload: Any
    namespace: Namespace = ()
    thread_id: str | None = None  # the conversation's thread
    configurable: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, payload: Any, config: RunnableConfig, template: NamespaceTemplate, thread_id: Any
    ) -> ReflectionRequest:
        """Build a request. Raises `BadArgument` if the namespace cannot be resolved."""
        given = config.get("configurable") or {}
        if thread_id is FROM_CONFIG:
            thread_id = given.get("thread_id")
        return cls(
            payload,
            resolve_namespace(template, config),
            None if thread_id in (None, "") else check_text("thread_id", str(thread_id)),
            storable_entries(given),
            storable_entries(config.get("metadata") or {}),
            tuple(map(str, config.get("tags") or ())),
        )

    def thread(self, executor: str, key: str = "") -> str:
        """The thread that a reflection shares with those it replaces, or is replaced by. Without a
        conversation `key` makes it unique."""
        conversation = [*self.namespace, "", self.thread_id]
        parts = json.dumps([key] if self.thread_id is None else conversation)
        digest = hashlib.blake2b(parts.encode(), digest_size=16)
        return f"{PREFIX}{executor}:{digest.hexdigest()}"

    def config(self) -> RunnableConfig:
        """The config the reflector is called with."""
        configurable = dict(self.configurable)
        if self.thread_id is not None:
            configurable["thread_id"] = self.thread_id
        return {
            "configurable": configurable,
            "metadata": dict(self.metadata),
            "tags": list(self.tags),
        }


def check_delay(seconds: Any) -> None:
    """Raise `BadArgument` unless `seconds` is a number from 0 to a hundred years."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_DELAY:
        raise BadArgument(f"after_seconds={seconds!r}: pass a number of seconds, 0 or more.")


def current_config() -> RunnableConfig | None:
    """The config of the node this is called in, or None outside a node."""
    try:
        return get_config()
    except RuntimeError:
        return None


def resolve_namespace(template: NamespaceTemplate, config: RunnableConfig | None) -> Namespace:
    """Fill the variables of a namespace from the config's `configurable`."""
    given = (config or {}).get("configurable") or {}
    if missing := [name for name in variables_of(template) if given.get(name) is None]:
        raise BadArgument(
            f"The namespace {'/'.join(labels_of(template))} needs {missing[0]!r}, which is not in "
            f"config['configurable']: there is {', '.join(map(repr, given)) or 'nothing'}. Pass "
            f"config={{'configurable': {{{missing[0]!r}: ...}}}}."
        )
    found: Namespace = template({"configurable": {k: str(v) for k, v in given.items()}})
    for label in found:
        check_text("namespace", label)
    if bad := [label for label in found if not label or "." in label]:
        raise BadArgument(
            f"The namespace {found!r} has the label {bad[0]!r}, which LangGraph stores refuse: "
            "labels must not be empty or contain a '.'."
        )
    return found
