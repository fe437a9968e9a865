"""Named statements from one `queries.sql`, rendered for a dialect.

A statement starts at a line `-- name: some_name`; parameters are `:name`; `{fragment}` is one
of the dialect's few fragments.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

# The same in every dialect: words that several statements share.
EVENT = "thread_id, run_id, n, at, kind"
COMMON = {
    "run": (
        "thread_id, id, n, graph, version, key, state, due_at, ready_at, token, attempts, begun, "
        "was, control, undo, events, created_at, updated_at, fingerprint, reason, setup, output, "
        "error, saved_steps, saved_effects, saved_calls, labels, driven, parent_id, depth, "
        "streams, streamed, webhook, "
        "EXISTS (SELECT 1 FROM "
        "perdure_checkpoints AS c WHERE c.thread_id = perdure_runs.thread_id)"
    ),
    "effect": (
        "scope, task, name, n, key, thread_id, run_id, checkpoint_id, state, intent, attempts, "
        "digest, undo, mark, settled, due_at, created_at, updated_at, arguments, outcome, "
        "min_equal, provisional_digests, unconfirmed"
    ),
    "wait": (
        "thread_id, id, run_id, kind, name, state, interrupt_id, ns, checkpoint_id, task_id, path, "
        "stamp, wake_at, expires_at, created_at, answered_at, answered_by, body, answer, seal, "
        "COALESCE(graph, (SELECT r.graph FROM perdure_runs AS r WHERE "
        "r.thread_id = perdure_waits.thread_id AND r.id = perdure_waits.run_id)), assignee"
    ),
    "schedule": (
        "name, graph, cron, timezone, catch_up, next_at, body, enabled, end_at, created_at, "
        "updated_at, thread_id, missed, missed_at, problem"
    ),
    # A schedule that is to start runs, and has not: its last slots were missed, or nobody fires it.
    "schedule_fails": (
        "enabled = 1 AND (problem IS NOT NULL OR next_at <= :late "
        "AND (end_at IS NULL OR next_at <= end_at))"
    ),
    "event": EVENT,
    "ended": "('done', 'failed', 'cancelled')",
    # Of a claim: whether a worker was lost, and what is stored and not done again.
    "continued": (
        "recoveries = recoveries + CASE WHEN state = 'running' THEN 1 ELSE 0 END, "
        "saved_steps = saved_steps + steps, saved_calls = saved_calls + model_calls"
    ),
    # A driven run whose lease has not ended by the clock that this host shares with its worker.
    "held": (
        "(state = 'running' AND COALESCE(worker, '') LIKE :clock AND COALESCE(lease_until, 0) "
        "> :tick AND COALESCE(lease_until, 0) <= :latest)"
    ),
    "undo": (
        "EXISTS (SELECT 1 FROM perdure_effects AS e WHERE e.run_id = perdure_runs.id "
        "AND e.run_id <> '' AND e.undo = 1 AND e.state = 'done')"
    ),
}
COMMON["joined"] = (
    "w.kind = 'run' AND NOT EXISTS (SELECT 1 FROM perdure_joins AS o JOIN perdure_runs AS c "
    "ON c.thread_id = o.joined_thread AND c.id = o.joined_id WHERE o.thread_id = w.thread_id "
    "AND o.wait_id = w.id AND c.state NOT IN ('done', 'failed', 'cancelled'))"
)
COMMON["descendants"] = (
    "WITH RECURSIVE stopped (id) AS (SELECT id FROM perdure_runs "
    "WHERE thread_id = :thread_id AND id = :id AND change = :by "
    "AND (state = 'cancelled' OR control = 'cancel') "
    "UNION ALL SELECT id FROM perdure_runs "
    "WHERE thread_id = :thread_id AND stop_change = :by AND change = :by), "
    "tree (id) AS (SELECT c.id FROM stopped JOIN perdure_runs AS c "
    "ON c.parent_id = stopped.id AND c.ignores_parent_cancel = 0 "
    "UNION SELECT c.id FROM tree JOIN perdure_runs AS c "
    "ON c.parent_id = tree.id AND c.ignores_parent_cancel = 0) SELECT id FROM tree"
)
COMMON["cancels"] = (
    "((CAST(:state AS TEXT) = 'cancelled' OR (control = 'cancel' AND CAST(:state AS TEXT) "
    "NOT IN ('done', 'failed', 'held'))) AND " + COMMON["undo"] + ")"
)
COMMON["settled"] = (
    "NOT EXISTS (SELECT 1 FROM perdure_effects AS e WHERE e.run_id = perdure_runs.id "
    "AND e.run_id <> '' AND e.state = 'unknown') AND EXISTS (SELECT 1 FROM perdure_events AS v "
    "WHERE v.thread_id = perdure_runs.thread_id AND v.run_id = perdure_runs.id "
    "AND v.kind = 'settled' AND v.n > (SELECT max(c.n) FROM perdure_events AS c "
    "WHERE c.thread_id = perdure_runs.thread_id AND c.run_id = perdure_runs.id "
    "AND c.kind IN ('claimed', 'recovered')))"
)
"""A person settled an effect since the last claim, and none is unknown."""
COMMON["released"] = (
    "(:held = 1 AND (control IS NULL OR (control = 'cancel' AND "
    + COMMON["undo"]
    + ")) AND "
    + COMMON["settled"]
    + ")"
)
COMMON["withdrawable"] = (
    "kind = 'human' AND state IN ('answered', 'applied') AND answer IS NOT NULL "
    "AND (expires_at IS NULL OR answered_at < expires_at) "
    "AND NOT EXISTS (SELECT 1 FROM perdure_checkpoints AS c "
    "WHERE c.thread_id = perdure_waits.thread_id AND c.ns = perdure_waits.ns "
    "AND c.id > perdure_waits.checkpoint_id) "
    "AND EXISTS (SELECT 1 FROM perdure_runs AS r WHERE r.thread_id = perdure_waits.thread_id "
    "AND r.id = perdure_waits.run_id AND (r.state IN ('pending', 'waiting', 'paused', 'held') "
    "OR r.state = 'failed' AND NOT EXISTS (SELECT 1 FROM perdure_runs AS l "
    "WHERE l.thread_id = r.thread_id AND l.n > r.n AND (l.begun = 1 OR l.state = 'running')) "
    "AND NOT EXISTS (SELECT 1 FROM perdure_effects AS e "
    "WHERE e.run_id = r.id AND e.run_id <> '' AND e.state = 'unknown')))"
)
"""A person's answer that its task has not gone on with, of a run that is not driven."""

COMMON["over"] = (
    "EXISTS (SELECT 1 FROM perdure_runs AS r WHERE r.thread_id = :thread_id AND r.id = :id "
    "AND r.state IN ('done', 'failed', 'cancelled'))"
)
"""The run has ended."""
_OTHERS = "EXISTS (SELECT 1 FROM perdure_runs AS o WHERE o.thread_id = :thread_id AND o.id <> :id)"
COMMON["alone"] = f"{COMMON['over']} AND NOT {_OTHERS}"
"""The run has ended, and its thread has no other."""
COMMON["no_checkpoints"] = (
    "NOT EXISTS (SELECT 1 FROM perdure_checkpoints WHERE thread_id = :thread_id)"
)
COMMON["some_writes"] = (
    "thread_id = :thread_id AND (ns, checkpoint_id, task_id, stamp) IN ("
    "SELECT ns, checkpoint_id, task_id, stamp FROM perdure_writes "
    "WHERE thread_id = :thread_id LIMIT :count)"
)
COMMON["some_values"] = (
    "thread_id = :thread_id AND (ns, channel, chain, seq, step) IN ("
    "SELECT ns, channel, chain, seq, step FROM perdure_values "
    "WHERE thread_id = :thread_id LIMIT :count)"
)
"""Up to :count rows of a thread."""
COMMON["no_runs"] = "NOT EXISTS (SELECT 1 FROM perdure_runs AS r WHERE r.thread_id = :thread_id)"
COMMON["is_deletable"] = (
    f"CASE CAST(:only AS TEXT) WHEN 'alone' THEN {COMMON['alone']} "
    f"WHEN 'no runs' THEN {COMMON['no_runs']} ELSE TRUE END"
)
"""The state of a thread may be deleted: of one that is `alone`, that has `no runs`, or of any."""
COMMON["rows_left"] = " OR ".join(
    f"EXISTS (SELECT 1 FROM perdure_{table} AS l WHERE l.thread_id = :thread_id)"  # noqa: S608
    for table in ("checkpoints", "writes", "values", "effects", "signals", "outbox")
)
"""A thread without runs has other rows."""
COMMON["old_effect"] = (
    "scope = :thread_id AND run_id = '' AND state IN ('done', 'failed') AND checkpoint_id NOT IN ("
    "SELECT id FROM perdure_checkpoints WHERE thread_id = :thread_id)"
)
"""An effect of a task whose checkpoint is gone, and that cannot run again, without a runtime."""

COMMON["trace_due"] = (
    "due_at = CASE WHEN perdure_traces.change <> 0 AND perdure_traces.due_at > :now "
    "THEN perdure_traces.due_at ELSE CAST(:now AS BIGINT) END, change = -ABS(perdure_traces.change)"
)
"""A trace is due: now, or when the process that exports it has noted what it gave."""

COMMON["assistant"] = "id, version, graph, name, created_at, updated_at, change, body"
COMMON["last_run"] = (
    "LEFT JOIN perdure_runs AS l ON l.thread_id = t.thread_id AND l.n = (SELECT o.n "
    "FROM perdure_runs AS o WHERE o.thread_id = t.thread_id AND o.undo = 0 "
    "ORDER BY o.n DESC LIMIT 1)"
)
"""The last run of each thread `t`, without those that were rolled back."""
COMMON["thread_rows"] = f"perdure_threads AS t {COMMON['last_run']}"
COMMON["thread_status"] = (
    "COALESCE((SELECT CASE WHEN h.state IN ('pending', 'running') THEN 'busy' "
    "WHEN h.state = 'paused' THEN 'interrupted' WHEN h.state <> 'waiting' THEN 'error' "
    "WHEN COALESCE(h.due_at, CAST(:now AS BIGINT) + 1) > :now AND EXISTS (SELECT 1 "
    "FROM perdure_waits AS w WHERE w.run_id = h.id AND w.state = 'open' "
    "AND w.kind = 'human') THEN 'interrupted' ELSE 'busy' END "
    "FROM perdure_runs AS h WHERE h.thread_id = t.thread_id "
    "AND h.state NOT IN ('done', 'failed', 'cancelled') ORDER BY h.n LIMIT 1), "
    "CASE WHEN l.state = 'failed' THEN 'error' "
    "WHEN l.state = 'cancelled' AND l.begun = 1 OR t.has_next = 1 THEN 'interrupted' "
    "ELSE 'idle' END)"
)
"""The status of a thread: by the run that is under way, else by the last one."""
COMMON["has_status"] = (
    f"(CAST(:status AS TEXT) IS NULL OR {COMMON['thread_status']} = CAST(:status AS TEXT))"
)
COMMON["is_listed"] = (
    "(CAST(:graph AS TEXT) IS NULL OR t.graph = :graph) "
    f"AND (CAST(:assistant AS TEXT) IS NULL OR t.assistant = :assistant) AND {COMMON['has_status']}"
)
COMMON["thread"] = (
    "t.thread_id, t.graph, t.assistant, t.created_at, t.updated_at, t.expires_at, t.change, "
    f"t.body, {COMMON['thread_status']}, l.id, l.graph, l.version, l.updated_at"
)
_TEXT_KEY = (
    f"CASE WHEN :direction = {{}} THEN CASE CAST(:sort AS TEXT) WHEN 'thread_id' THEN t.thread_id "
    f"WHEN 'status' THEN {COMMON['thread_status']} END END"
)
COMMON["thread_order"] = (
    "CAST(:direction AS BIGINT) * CASE CAST(:sort AS TEXT) WHEN 'created_at' THEN t.created_at "
    "WHEN 'updated_at' THEN t.updated_at "
    "WHEN 'state_updated_at' THEN COALESCE(l.updated_at, t.updated_at) END, "
    f"{_TEXT_KEY.format(1)}, {_TEXT_KEY.format(-1)} DESC, "
    "CASE WHEN :direction = 1 THEN t.thread_id END, t.thread_id DESC"
)
"""By the column that :sort names: upwards if :direction is 1, downwards if it is -1."""

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def templates() -> Mapping[str, str]:
    """Every statement by its name, as written."""
    text = (files("perdure.journal") / "queries.sql").read_text()
    parts = _NAME.split(text)[1:]
    return {name: _body(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def parameters() -> Mapping[str, tuple[str, ...]]:
    """The names of the parameters of each statement."""
    every = defaultdict(str, COMMON, names=":names")  # no other fragment of a dialect has any
    filled = {name: fill(text, every) for name, text in templates().items()}
    return {name: tuple(sorted({*positional(sql)[1]})) for name, sql in filled.items()}


def render(fragments: Mapping[str, str], *, told: bool = False) -> dict[str, str]:
    """Every statement by its name, with the dialect's fragments filled in. Those that store events
    return the run and the number of each; `told`: all of it, for a listener."""
    returning = f"RETURNING {EVENT if told else 'thread_id, run_id, n'}"
    every = {**COMMON, "returning_event": returning, **fragments}
    return {name: fill(text, every) for name, text in templates().items()}


def fill(text: str, fragments: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: fragments[match[1]], text)


def positional(sql: str) -> tuple[str, tuple[str, ...]]:
    """A statement with `?` for its parameters, and their names in order."""
    return re.sub(r":(\w+)", "?", sql), tuple(re.findall(r":(\w+)", sql))


def has_rows(sql: str) -> bool:
    """Whether a statement gives rows."""
    return sql.startswith(("SELECT", "WITH RECURSIVE")) or "RETURNING" in sql


def split(script: str) -> list[str]:
    """The statements of a migration, which end at a semicolon at the end of a line."""
    return [
        part for part in (_body(part) for part in re.split(r";\s*$", script, flags=re.M)) if part
    ]


def _body(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")
