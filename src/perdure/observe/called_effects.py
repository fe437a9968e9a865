"""Arguments and results of the effects of exported spans, for sinks that send content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.observe.observers import Observed
from perdure.observe.trace_exporter import RunSpans
from perdure.operations import effects
from perdure.types import EffectRecord


def called_effects(engine: Observed, given: Sequence[RunSpans]) -> Mapping[str, EffectRecord]:
    """The effects that were called, by key. Replayed ones were not."""
    keys = {
        str(span.attributes["perdure.effect.key"])
        for run in given
        for span in run.spans
        if span.what == "effect" and not span.attributes.get("perdure.replayed")
    }
    found = engine.journal.do(effects.find_all(keys)) if keys else []
    return {row.key: effects.to_record(engine.serializer, row) for row in found}
