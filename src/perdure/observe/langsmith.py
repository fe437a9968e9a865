"""LangSmith runs: each segment of a run is a trace.

The runs are made from the journal's events, after the fact, like the spans of `opentelemetry`: a
segment is a root; its steps, effects and waits are below it. The process that drove the segment
sends them, or any other process with LangSmith, until LangSmith has them. What LangChain itself
reports while a segment is driven (LANGSMITH_TRACING) becomes a child of that root. LangChain sends
it from memory, so it is lost with the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from langsmith import Client
from langsmith.run_helpers import get_tracing_context, tracing_context
from langsmith.run_trees import RunTree
from langsmith.utils import LangSmithError, get_tracer_project, tracing_is_enabled
from urllib3.util import Retry

from perdure.errors import UNREADABLE, BadArgument
from perdure.langgraph_port import langsmith_client
from perdure.observe.called_effects import called_effects
from perdure.observe.langsmith_ids import feedback_id, segment_place
from perdure.observe.langsmith_runs import About, scored_place, to_run
from perdure.observe.langsmith_sender import Attempts, Sender
from perdure.observe.observers import Observed
from perdure.observe.trace_exporter import RunSpans, TraceSink
from perdure.observe.trace_fold import Span
from perdure.operations import runs, scores
from perdure.operations.run_payload import load_labels, load_output, load_setup
from perdure.operations.runs import RunRow
from perdure.types import Score

OLD = 600_000
"""Milliseconds for which feedback is sent again if LangSmith does not have its run."""
TIMEOUT = (5_000, 20_000)
"""Milliseconds to connect to LangSmith, and to wait for its answer."""
RETRY = Retry(4, backoff_factor=0.1, status_forcelist=(502, 503, 504), allowed_methods=None)
"""Retries of a lost request. What did not arrive is sent again later, from the journal."""


def _client() -> Client:
    """A client configured by the environment. Raises `BadArgument` for values that cannot work."""
    try:
        return Client(auto_batch_tracing=False, retry_config=RETRY, timeout_ms=TIMEOUT)
    except (LangSmithError, ValueError) as error:
        raise BadArgument(f"LangSmith cannot be used as it is configured: {error}") from error


class LangSmith(TraceSink):
    """Observer that sends each segment of a run to LangSmith as a trace, and scores as feedback.

    Needs the extra `langsmith`. Configure all workers on a journal the same way.

        runtime = Runtime("sqlite:///agents.db", observe=LangSmith())

    Args:
        client: A LangSmith client. What it hides or anonymizes is hidden here too. Default: one
            that LangSmith's variables configure: `LANGSMITH_ENDPOINT`, `LANGSMITH_API_KEY`,
            `LANGSMITH_WORKSPACE_ID`, `LANGSMITH_HIDE_INPUTS`, `LANGSMITH_HIDE_OUTPUTS`,
            `LANGSMITH_HIDE_METADATA`, `LANGSMITH_TRACING_SAMPLING_RATE`.
        project: The project. Default: `LANGSMITH_PROJECT`, or `default`.

    Raises:
        BadArgument: The variables configure a client that cannot work.
    """

    name = "langsmith"
    paths = True
    spans = 100

    def __init__(self, client: Client | None = None, *, project: str | None = None) -> None:
        super().__init__()
        self._is_own = client is None
        self._live_client = client if client and langsmith_client.can_queue(client) else None
        self._client = client or _client()
        self._project = project or get_tracer_project() or "default"
        self._sender = Sender(self._client, self._project)

    @contextlib.contextmanager
    def around(self, drive: Any) -> Iterator[None]:
        """Make the segment's LangSmith run the parent of what LangChain reports."""
        if not tracing_is_enabled():
            yield
            return
        row = drive.segment.lease.row
        where = segment_place(row.id, row.token, row.updated_at)
        parent = RunTree(
            name=row.graph,
            id=where.id,
            trace_id=where.trace_id,
            dotted_order=where.dotted_order,
            start_time=where.start,
            project_name=self._project,
            ls_client=self._live_client,
        )
        metadata = {"thread_id": row.thread_id, "perdure_run_id": row.id}
        now = get_tracing_context() | {"parent": parent, "distributed_parent_id": None}
        now["metadata"] = {**(now["metadata"] or {}), **metadata}
        with tracing_context(**now):
            yield

    def close(self) -> None:
        super().close()
        if self._is_own:
            self._client.close()

    def reopen(self) -> None:
        super().reopen()
        if self._is_own:
            self._client = _client()
            self._sender = Sender(self._client, self._project)

    def give(self, runs: Sequence[RunSpans]) -> bool:
        attempts = Attempts()
        if not runs:
            return True
        try:
            self._send(runs, attempts)
        except (LangSmithError, OSError):  # LangSmith is down
            return False
        return attempts.all_arrived

    def _send(self, given: Sequence[RunSpans], attempts: Attempts) -> None:
        described = self._describe(given)
        called = called_effects(self._engine, given)
        live = bool(tracing_is_enabled())
        made = []
        for run in given:
            about = described.get(run.run_id, About())
            for span in run.spans:
                effect = called.get(str(span.attributes.get("perdure.effect.key")))
                if span.what != "score":
                    made.append(to_run(run, span, about, effect, traced_live=live))
        found = [run for run in made if run is not None]
        found.sort(key=lambda run: run["dotted_order"])  # parents first
        self._sender.send_runs(found, attempts)
        for run in given:
            if any(span.what == "score" for span in run.spans):
                self._send_scores(run, attempts)

    def _send_scores(self, run: RunSpans, attempts: Attempts) -> None:
        engine = self._engine
        of_run = scores.of_run(engine.serializer, run.thread_id, run.run_id)
        stored = {(one.name, one.about): one for one, _ in engine.journal.do(of_run)}
        given = {_names(span): span for span in run.spans if span.what == "score"}
        for (name, about), span in given.items():
            score, where = stored.get((name, about)), scored_place(run.run_id, span)
            if score is None or where is None:
                continue  # it was withdrawn, or nothing was driven before it
            with attempts.each():
                self._sender.send_feedback(
                    feedback_id(run.run_id, name, about),
                    where.trace_id,
                    (run.run_id, span.key),
                    is_old=engine.clock.now() - span.start > OLD,
                    run_id=where.id,
                    key=name,
                    score=score.value,  # as it is now: an older event does not bring it back
                    value=score.label,
                    comment=self._sender.comment(score.comment),
                    source_info=_source(run, score),
                    start_time=where.start,
                )

    # -- what the journal has besides events

    def _describe(self, given: Sequence[RunSpans]) -> dict[str, About]:
        engine = self._engine
        rows = engine.journal.do(runs.find_all(run.run_id for run in given))
        ended = {
            run.run_id
            for run in given
            if any(span.attributes.get("perdure.ended") == "done" for span in run.spans)
        }
        return {row.id: self._about(engine, row, row.id in ended) for row in rows}

    def _about(self, engine: Observed, row: RunRow, ended: bool) -> About:
        try:
            setup = load_setup(engine.serializer, row)
            metadata = {**(setup.get("metadata") or {}), **load_labels(engine.serializer, row)}
            output = None
            if ended and not langsmith_client.hides_outputs(self._client):
                output = engine.journal.run(load_output(engine.serializer, row, engine.state_at))
        except UNREADABLE:
            return About()
        return About(metadata, tuple(setup.get("tags") or ()), setup.get("input"), output)


def _names(span: Span) -> tuple[str, str]:
    """The name of a score, and the part of the run that it is stored for."""
    names = ("perdure.score.about", "perdure.checkpoint", "perdure.effect.key", "perdure.wait.id")
    about = next((str(found) for name in names if (found := span.attributes.get(name))), "")
    return str(span.attributes["gen_ai.evaluation.name"]), about


def _source(run: RunSpans, score: Score) -> dict[str, Any]:
    prompts = [f"{name}@{version}" for name, version in score.prompts]
    about = {
        "perdure_run_id": run.run_id,
        "perdure_score_about": score.about,
        "perdure_by": score.by,
        "perdure_prompts": prompts,
    }
    return {name: value for name, value in about.items() if value}
