"""A whole month of the campaign under everything that can go wrong, judged from outside.

Workers and crons are killed the whole time, the mail server fails in every way it knows, and
refuses us for a while; campaigns are paused and stopped; prospects write at every moment: before
the first touch, while one is sent, right after, asleep, while a draft is held, when all is over.
What must hold then is asked of the mail server's own log (tests/support/month_judge.py).

`CAMPAIGN_CONTACTS=1000` (`make campaign-month`) is the month of docs/evidence.md,
and so is `CAMPAIGN_CONTACTS=60` on D1 (`make campaign-month-d1`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.campaign.postoffice import Fault
from perdure.testing.d1 import Workerd
from tests.support import sweep
from tests.support.faulty_proxy import PASSING, FaultyProxy
from tests.support.faulty_proxy import Fault as NetworkFault
from tests.support.fork_server import ForkServer
from tests.support.month import OUTAGES, Month
from tests.support.month_judge import Judge, assert_right

CONTACTS = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 30)))
ON_POSTGRES = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 12)))
ON_D1 = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 3)))
SEED = int(os.environ.get("CAMPAIGN_SEED", "7"))
FAILING = [fault for fault in PASSING if fault is not NetworkFault.SLOW]


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_month_in_which_everything_goes_wrong(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    contacts = CONTACTS if url.startswith("sqlite") else ON_POSTGRES
    with Month(fork_server, url, tmp_path, contacts, SEED) as month:
        month.run(seconds=300 + 2 * contacts)
        assert_right(Judge(month))
        assert sum(month.crew.killed.values()) >= contacts / 20
        faults = {one.fault for one in month.office.conversations}
        assert faults >= set(Fault) or contacts < 30
        assert month.counts["sender refused"] == len(OUTAGES)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_month_on_d1_in_which_a_fifth_of_all_requests_fails(
    fork_server: ForkServer, d1_server: Workerd, d1_url: str, tmp_path: Path
) -> None:
    """In every way, and workerd is killed, too."""

    def outage() -> None:
        d1_server.kill()
        d1_server.start()

    with (
        FaultyProxy(d1_url, rate=0.2, seed=SEED, faults=FAILING) as proxy,
        Month(fork_server, proxy.url, tmp_path, ON_D1, SEED, outage=outage) as month,
    ):
        month.run(seconds=600 + 30 * ON_D1)
        proxy.rate = 0.0
        print(f"requests: {proxy.requests}, failed: {proxy.seen.total()}")
        for fault, count in proxy.seen.most_common():
            print(f"  {fault}: {count}")
        print(f"workerd killed: {month.counts['outages']}")
        assert_right(Judge(month))
        assert 0.15 < proxy.seen.total() / proxy.requests < 0.25
        assert sum(month.crew.killed.values()) >= ON_D1 / 20
        assert month.counts["outages"] >= max(1, ON_D1 // 20)
