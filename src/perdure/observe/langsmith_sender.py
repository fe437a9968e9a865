"""Send runs and feedback to LangSmith, and know that they arrived.

Every run and feedback has a stable id, and LangSmith refuses a second one with the same id (409).
So after any failure everything can be sent again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langsmith.utils import (
    LangSmithConflictError,
    LangSmithError,
    LangSmithNotFoundError,
    filter_logs,
)

from perdure.langgraph_port import langsmith_client

if TYPE_CHECKING:
    from langsmith import Client

log = logging.getLogger("perdure")

RUNS = 100
"""Runs per request."""
BYTES = 8_000_000
"""Bytes per request. LangSmith takes 20 MB."""
REMEMBERED = 20_000
"""How many runs and scores that arrived are remembered, so that they are not sent again with the
others of their batch."""
AWAY = 5
"""Failures in a row after which LangSmith counts as down."""
_NEVER_TAKEN = (400, 413, 422)


class Attempts:
    """Tries each of several requests. A lost one does not stop the next, but several in a row mean
    that LangSmith is down."""

    def __init__(self) -> None:
        self.all_arrived = True
        self._lost_in_a_row = 0

    @contextlib.contextmanager
    def each(self) -> Iterator[None]:
        try:
            yield
        except (LangSmithError, OSError) as error:
            log.debug("LangSmith did not answer: %s", error)
            self.all_arrived = False
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= AWAY:
                raise
        else:
            self._lost_in_a_row = 0


class Sender:
    """Sends runs and feedback of one project."""

    def __init__(self, client: Client, project: str) -> None:
        self._client, self._project = client, project
        self._project_id: UUID | None = None
        self._arrived: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = threading.Lock()

    def send_runs(self, runs: Sequence[Mapping[str, Any]], attempts: Attempts) -> None:
        """Send runs that are over."""
        wanted = [
            {**run, "session_name": self._project}
            for run in runs
            if run["id"] not in self._arrived
            and langsmith_client.is_sampled(self._client, run["trace_id"])
        ]
        for ids, bodies in _batches(self._prepared(wanted)):
            with attempts.each():
                self._post(ids, bodies, attempts)

    def _prepared(self, runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[UUID, bytes]]:
        for run in runs:
            try:
                prepared = langsmith_client.prepare(self._client, run)
                body = langsmith_client.serialize(prepared)
            except Exception:  # an anonymizer raised: sending without it could leak a secret
                log.exception("Run %s cannot be prepared for LangSmith and is left out.", run["id"])
            else:
                yield run["id"], body

    def _post(self, ids: list[UUID], bodies: list[bytes], attempts: Attempts) -> None:
        data = b'{"post":[' + b",".join(bodies) + b'],"patch":[]}'
        try:
            for url, key in langsmith_client.write_urls(self._client).items():
                headers = {"x-api-key": key} if key else {}
                request = {"data": data, "headers": headers}
                try:
                    self._client.request_with_retries(
                        "POST", f"{url}/runs/batch", request_kwargs=request
                    )
                except LangSmithConflictError:
                    if len(ids) > 1:  # one of them is there; the others may not be
                        raise
        except LangSmithError as error:
            is_refused = _status(error) in _NEVER_TAKEN
            if not is_refused and not isinstance(error, LangSmithConflictError):
                raise
            if len(ids) > 1:
                for id, body in zip(ids, bodies, strict=True):
                    with attempts.each():
                        self._post([id], [body], attempts)
                return
            log.error("LangSmith does not take run %s, which is left out: %s", ids[0], error)
        self._remember(ids)

    def _remember(self, arrived: Iterable[Hashable]) -> None:
        with self._lock:
            self._arrived.update(dict.fromkeys(arrived))
            while len(self._arrived) > REMEMBERED:
                self._arrived.popitem(last=False)

    def send_feedback(
        self, id: UUID, trace_id: UUID, event: Hashable, *, is_old: bool, **feedback: Any
    ) -> None:
        """Send a score as feedback on a run; if LangSmith has that feedback, update it. Raises
        unless it arrived. If LangSmith does not have the run, it is tried again, unless the score
        `is_old`."""
        if event in self._arrived or not langsmith_client.is_sampled(self._client, trace_id):
            return
        try:
            with _without_traceback():
                self._client.create_feedback(
                    feedback_id=id,
                    session_id=self._find_project(),
                    stop_after_attempt=1,
                    **feedback,
                )
        except LangSmithConflictError:
            changed = {name: feedback.get(name) for name in ("score", "value", "comment")}
            self._client.update_feedback(id, **changed)
        except LangSmithNotFoundError:
            if not is_old:
                raise
            run = feedback["run_id"]
            log.warning("LangSmith does not have run %s: its feedback is left out.", run)
        except LangSmithError as error:
            if _status(error) not in _NEVER_TAKEN:
                raise
            log.error("LangSmith does not take feedback %s, which is left out: %s", id, error)
        self._remember([event])

    def comment(self, text: str | None) -> str | None:
        """What may be sent of a comment."""
        if text is None or langsmith_client.hides_outputs(self._client):
            return None
        try:
            return langsmith_client.anonymize(self._client, text)
        except Exception:
            log.exception("A comment cannot be prepared for LangSmith and is left out.")
            return None

    def _find_project(self) -> UUID:
        if self._project_id is None:
            self._project_id = self._client.read_project(project_name=self._project).id
        return self._project_id


def _batches(runs: Iterator[tuple[UUID, bytes]]) -> Iterator[tuple[list[UUID], list[bytes]]]:
    ids: list[UUID] = []
    bodies: list[bytes] = []
    for id, body in runs:
        if ids and (len(ids) == RUNS or sum(map(len, bodies)) + len(body) > BYTES):
            yield ids, bodies
            ids, bodies = [], []
        ids.append(id)
        bodies.append(body)
    if ids:
        yield ids, bodies


def _status(error: LangSmithError) -> int | None:
    """The HTTP status of LangSmith's answer."""
    response = getattr(error.__context__, "response", None)
    return getattr(response, "status_code", None)


@contextlib.contextmanager
def _without_traceback() -> Iterator[None]:
    """Silence the client, which logs each failure with its traceback. The exporter logs it once."""

    class _Quiet(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return "creating feedback" not in str(record.msg)

    with filter_logs(logging.getLogger("langsmith.client"), [_Quiet()]):
        yield
