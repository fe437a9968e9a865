"""The traces of a month in which everything goes wrong, as a collector receives them.

Workers, crons and listeners are killed, the collector is killed, and half of its requests fail.
`CAMPAIGN_CONTACTS=30` (`make campaign-traces`) is the month of docs/evidence.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.campaign.demo.months import Campaign
from perdure.types import Event, Run
from tests.examples.test_campaign_month import SEED, live
from tests.observe.langsmith_server import Store, langsmith_server
from tests.observe.otlp_receiver import Receiver
from tests.observe.trace_judge import TraceJudge, langsmith_findings
from tests.support import sweep
from tests.support.fork_server import ForkServer
from tests.support.polling import until

CONTACTS = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(30, 5)))
DOWN = 0.5
LANGSMITH = os.environ.get("CAMPAIGN_LANGSMITH", str(int(CONTACTS > 10))) == "1"
"""Whether runs go to LangSmith, too."""
DEATHS = 0.05 if CONTACTS > 10 else 0.4


def drain(month: Campaign) -> None:
    """End every run, and have the workers export what the dead ones left."""
    client = month.app.runtime.blocking
    for run in all_runs(month):  # from a process that exports nothing
        if not run.ended:
            client.cancel(run.id)

    def is_over() -> bool:
        month.crew.check()
        [row] = month.app.database.rows(
            "SELECT count(*) AS n, min(due_at) AS at FROM perdure_traces WHERE due_at IS NOT NULL"
        )
        if row["n"] and row["at"] > month.clock.now():
            month.clock.move_to(datetime.fromtimestamp(row["at"] / 1000, UTC))
        return not row["n"]

    until(is_over, "a collector that has everything", 120 + 5 * CONTACTS)


@contextlib.contextmanager
def down_half_of_the_time(store: Store) -> Iterator[None]:
    """For a second all requests fail, also those that are taken, in the next one none."""
    over = threading.Event()

    def change() -> None:
        while not over.wait(1.0):
            store.trouble = 1.0 - store.trouble

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def of_langsmith(store: Store) -> dict[str, str]:
    """What makes a process send runs to it."""
    return {"LANGSMITH_ENDPOINT": store.url, "LANGSMITH_API_KEY": "none"}


def all_runs(month: Campaign) -> list[Run]:
    return month.app.runtime.blocking.runs(limit=10 * CONTACTS, output=False)


def events_of(month: Campaign, run: Run) -> list[Event]:
    found: list[Event] = []
    while page := month.app.runtime.blocking.events(
        run.id, after=found[-1].n if found else 0, limit=1000
    ):
        found += page
    return found


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_contact_is_one_whole_trace_however_often_processes_and_the_collector_die(
    fork_server: ForkServer, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "collector").mkdir()
    runs: dict[str, tuple[str, list[Event]]] = {}
    with (
        Receiver(fork_server, tmp_path / "collector", seed=SEED) as receiver,
        langsmith_server(seed=SEED) as langsmith,
        down_half_of_the_time(langsmith),
    ):

        def over(month: Campaign) -> None:
            receiver.kill()
            receiver.start()
            drain(month)
            runs.update({run.id: (run.thread_id, events_of(month, run)) for run in all_runs(month)})

        receiver.set_down(DOWN)
        environment = receiver.environment | (of_langsmith(langsmith) if LANGSMITH else {})
        live(
            sqlite_url,
            tmp_path,
            CONTACTS,
            environment=environment,
            deaths=DEATHS,
            patience=300 + 6 * CONTACTS,
            over=over,
        )
        judge = TraceJudge(receiver.spans(), runs)
        for name, value in judge.figures().items():
            print(f"{name}: {value}")
        requests = Counter(request["how"] for request in receiver.requests())
        print(f"requests: {dict(requests)}, collector killed: {receiver.kills}")
    print(
        f"LangSmith: {len(langsmith.requests)} requests, {len(langsmith.runs)} runs, "
        f"{len(langsmith.feedback)} feedback, {langsmith.repeats} it had already"
    )
    assert judge.findings() == []
    if LANGSMITH:
        assert langsmith_findings(langsmith, runs) == []
    assert judge.figures()["recovered segments"]
    if requests.total() > 50:
        assert 0.3 < 1 - requests["take"] / requests.total() < 0.7
