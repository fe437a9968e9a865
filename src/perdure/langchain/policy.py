"""How the calls of a tool settle: by a policy, or by the tool's own hints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from langchain_core.tools import BaseTool

from perdure.effects.spec import ONCE, EffectSpec, check_unknown, record_of, seconds_of
from perdure.errors import BadArgument
from perdure.types import Record, Retry


@dataclass(frozen=True)
class Policy:
    """How to handle the calls of a tool, for `Durable(tools={name: Policy(…)})`.

    Attributes:
        key: A function of the tool's arguments, by name, that returns a business key. Calls
            with the same key are made once across runs and threads: a second call gets the
            outcome of the first.
        unknown: How to handle a call with an unknown outcome: call it again with the same key
            (`retry`), or hold the run until a person settles it (`hold`). `None`, as for a tool
            without a policy: an interrupted call holds the run, and an exception means that
            nothing happened.
        retry: How often perdure tries a call that raised; the last exception is recorded.
            `None`: an exception is raised at once and not recorded, and retries are left to
            LangChain and to the run.
        timeout: Limit for one attempt, in seconds or as a timedelta.
        record: Which arguments to store: their names, or a `Record`. By default everything
            except secrets.
        trust_errors: With `unknown="hold"`: an exception means that nothing happened, so only a
            call that was cut off holds the run.

    Raises:
        BadArgument: `unknown` or `timeout` is not valid.
    """

    key: Callable[..., Any] | None = None
    unknown: Literal["retry", "hold"] | None = None
    retry: Retry | None = None
    timeout: float | timedelta | None = None
    record: Record | Collection[str] | None = None
    trust_errors: bool = False

    def __post_init__(self) -> None:
        if self.unknown is not None:
            check_unknown(self.unknown)
        seconds_of(self.timeout)

    def spec(self, tool: str) -> EffectSpec:
        """Return the effect that a call of this tool is. Internal."""
        return EffectSpec(
            f"tool {tool}",
            unknown=self.unknown or "hold",
            retry=self.retry or ONCE,
            timeout=seconds_of(self.timeout),
            record=record_of(self.record),
            keeps_errors=self.retry is not None,
            trust_errors=self.trust_errors or self.unknown is None,
        )


NAMED: dict[str, Policy | None] = {
    "read": None,
    "retry": Policy(unknown="retry"),
    "hold": Policy(unknown="hold"),
}
"""Policies by name. None: not recorded, but called every time."""
UNSAID = Policy()
"""For a tool without hints or a mapping. A call that was cut off holds the run, since a second one
may do harm. An exception is left to LangChain."""
ONLY_STATE = frozenset(["langchain.agents.middleware.todo"])
"""Modules of LangChain whose tools change nothing but the state of the graph."""


def policy_of(name: str, policy: Any) -> Policy | None:
    """The policy that `Durable(tools={name: policy})` means."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in NAMED:
        names = ", ".join(map(repr, NAMED))
        raise BadArgument(f"tools={{{name!r}: {policy!r}}}: use {names}, or a Policy.")
    return NAMED[policy]


def policy_by_hints(tool: BaseTool | None) -> Policy | None:
    """The policy that a tool's own hints mean."""
    if _has_hint(tool, "readOnlyHint"):
        return NAMED["read"]
    if _has_hint(tool, "idempotentHint") or changes_only_state(tool):
        return NAMED["retry"]
    return NAMED["hold"] if _has_hint(tool, "destructiveHint") else UNSAID


def changes_only_state(tool: BaseTool | None) -> bool:
    """Whether a tool changes nothing but the state of the graph."""
    return getattr(getattr(tool, "func", None), "__module__", "") in ONLY_STATE


def _has_hint(tool: BaseTool | None, hint: str) -> bool:
    """In the tool's metadata, where LangChain's MCP adapters put them, or in its attributes."""
    metadata = getattr(tool, "metadata", None) or {}
    for source in (metadata, metadata.get("annotations"), getattr(tool, "annotations", None), tool):
        value = source.get(hint) if isinstance(source, Mapping) else getattr(source, hint, None)
        if isinstance(value, bool):
            return value
    return False
