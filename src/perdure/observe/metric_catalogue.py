"""The metrics: their names, help, labels and units. `docs/guides/metrics.md` explains each."""

from __future__ import annotations

from typing import NamedTuple

Labels = tuple[str, ...]
# The values of a metric, by the values of its labels.
Series = dict[Labels, float]
# Gauges and counters, by name.
Readings = tuple[dict[str, Series], dict[str, Series]]


class Description(NamedTuple):
    """What a metric is."""

    name: str
    help: str
    labels: Labels
    unit: str  # as OpenTelemetry writes it: `s`, `By`, `1`


def _metric(name: str, help: str, *labels: str) -> Description:
    unit = {"seconds": "s", "bytes": "By"}.get(name.rpartition("_")[2], "1")
    return Description(name, help, labels, unit)


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

GAUGES = (
    _metric("perdure_info", "1, with the version of perdure.", "version"),
    _metric(
        "perdure_worker_failing", "What a duty of workers here failed at, and tries again.", "duty"
    ),
    _metric("perdure_journal_queue_depth", "Operations queued, and not committed yet."),
    _metric("perdure_runs", "Unfinished runs.", "graph", "state"),
    _metric("perdure_runs_due", "Runs that are due, and not claimed.", "graph"),
    _metric("perdure_due_lag_seconds", "How late the first due run is."),
    _metric("perdure_graph_due_lag_seconds", "How late the first due run of a graph is.", "graph"),
    _metric("perdure_waits_open", "Open waits.", "kind"),
    _metric("perdure_questions_open", "Questions that wait for a person."),
    _metric("perdure_question_oldest_seconds", "Age of the oldest of them."),
    _metric("perdure_effects_unknown", "Effects with an unknown outcome.", "effect"),
    _metric("perdure_outbox_messages", "Messages that are not delivered."),
    _metric("perdure_outbox_oldest_seconds", "Age of the oldest of them."),
    _metric("perdure_schedule_slots_missed", "Times of schedules that started no run.", "graph"),
    _metric("perdure_schedules_failing", "Schedules that start no runs and should.", "graph"),
    _metric("perdure_lost_changes", "Acknowledged changes that were lost in 30 days."),
    _metric("perdure_journal_counting_seconds", "Time that counting the journal took."),
    _metric("perdure_database_bytes", "Size of the journal's database."),
)
COUNTERS = (
    _metric("perdure_events_total", "Events stored by this process.", "kind"),
    _metric("perdure_runs_started_total", "Runs accepted.", "graph"),
    _metric("perdure_runs_ended_total", "Runs that ended.", "graph", "state"),
    _metric("perdure_claims_total", "Segments begun.", "graph"),
    _metric("perdure_run_retries_total", "Segments that raised and are tried again.", "graph"),
    _metric("perdure_takeovers_total", "Runs taken from a worker that died.", "graph"),
    _metric("perdure_effects_total", "Outcomes of effects.", "effect", "state"),
    _metric("perdure_effect_retries_total", "Calls of effects to be made again.", "effect"),
    _metric("perdure_saved_effects_total", "Effects returned from the record.", "graph"),
    _metric("perdure_saved_model_calls_total", "Model calls returned from the record.", "graph"),
    _metric("perdure_saved_tokens_total", "Tokens of those model calls.", "graph"),
    _metric("perdure_worker_failures_total", "Failures of workers, by what they did.", "duty"),
)
# With the bounds of their buckets.
HISTOGRAMS = {
    _metric("perdure_claim_latency_seconds", "How late the first due run was claimed."): SECONDS,
    _metric("perdure_step_seconds", "Time of a step, from the one before.", "graph"): SECONDS,
    _metric("perdure_event_loop_lag_seconds", "How late the event loop of a worker is."): SECONDS,
    _metric("perdure_journal_commit_seconds", "Time of one commit of the journal."): SECONDS,
    _metric("perdure_journal_batch_operations", "Operations in one commit."): SIZES,
}
