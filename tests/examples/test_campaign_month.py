"""A month of the campaign while everything goes wrong, judged by the mail server's own log.

Workers are killed all the time, at moments of an SMTP conversation and at random; one conversation
in ten fails, in every way that the post office knows; it refuses the sender for a while, twice; a
campaign is paused; prospects write before, while and after a mail is sent, and every mail of theirs
arrives twice. `examples/campaign/demo` makes it happen.

`CAMPAIGN_CONTACTS=200` (`make campaign-month`) is the month of docs/evidence.md,
and so is `CAMPAIGN_CONTACTS=5` on D1 (`make campaign-month-d1`).
"""

from __future__ import annotations

import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.campaign.demo.conductor import OUTAGES, Result
from examples.campaign.demo.crew import warm_up
from examples.campaign.demo.months import Campaign
from examples.campaign.demo.plan import draw_many
from examples.campaign.demo.play import month
from examples.campaign.demo.postoffice import Fault
from perdure.testing.d1 import Workerd
from tests.support import sweep
from tests.support.proxy import PASSING, FaultyProxy
from tests.support.proxy import Fault as NetworkFault

CONTACTS = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 16)))
ON_POSTGRES = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 8)))
ON_D1 = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 5)))
SEED = int(os.environ.get("CAMPAIGN_SEED", "7"))
FAILING = [fault for fault in PASSING if fault is not NetworkFault.SLOW]


def live(
    url: str,
    folder: Path,
    contacts: int,
    *,
    environment: Mapping[str, str] | None = None,
    deaths: float = 0.05,
    patience: float = 600.0,
    over: Callable[[Campaign], object] = lambda _: None,
) -> tuple[Campaign, Result]:
    """Live through the month; `over` is called when it ends, before the processes do."""
    lived: list[Campaign] = []

    class Lived(Campaign):
        pause = (2.0, 4.0)

        def problems(self) -> list[str]:
            found = super().problems()
            over(self)
            return found

    def begin(*parts: Any) -> Campaign:
        lived.append(Lived(*parts, url=url, workers=3, environment=environment))
        return lived[0]

    plan = draw_many(SEED, contacts, deaths)
    screen = Console(file=io.StringIO(), force_terminal=False)
    warm_up()
    result = month(
        begin,
        "a month",
        plan,
        folder / "month",
        screen,
        pace=0.0,
        leap=timedelta(minutes=40),
        patience=patience,
    )
    for name, value in vars(result).items():
        if name not in ("plan", "wrong"):
            print(f"{name.replace('_', ' ')}: {value}")
    conversations = lived[0].office.conversations
    print(f"conversations: {len(conversations)}")
    print(f"faults: {dict(Counter(str(one.fault) for one in conversations if one.fault))}")
    print(f"campaigns resumed after trouble: {lived[0].resumed.total()}")
    assert result.wrong == [], screen.file.getvalue()[-5000:]  # type: ignore[attr-defined]
    return lived[0], result


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_month_in_which_everything_goes_wrong(url: str, tmp_path: Path) -> None:
    contacts = CONTACTS if url.startswith("sqlite") else ON_POSTGRES
    engine, result = live(url, tmp_path, contacts, patience=300 + 3 * contacts)
    assert result.killed >= contacts / 5
    assert engine.resumed.total() >= len(OUTAGES)
    faults = {one.fault for one in engine.office.conversations} - {None}
    assert faults == set(Fault) or contacts < 60


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_month_on_d1_in_which_a_fifth_of_all_requests_fails(
    d1_server: Workerd, d1_url: str, tmp_path: Path
) -> None:
    """In every way, and workerd is killed, too."""
    over, outages = threading.Event(), Counter[str]()

    def have_outages() -> None:
        while not over.wait(10.0):
            d1_server.kill()
            d1_server.start()
            outages["workerd"] += 1

    with FaultyProxy(d1_url, rate=0.2, seed=SEED, faults=FAILING) as proxy:
        killer = threading.Thread(target=have_outages)
        killer.start()

        def end(_: Campaign) -> None:
            over.set()

        try:
            live(proxy.url, tmp_path, ON_D1, patience=600 + 30 * ON_D1, over=end)
        finally:
            over.set()
            killer.join()
        print(f"requests: {proxy.requests}, failed: {proxy.seen.total()}; outages: {outages}")
        assert 0.15 < proxy.seen.total() / proxy.requests < 0.25
        assert outages["workerd"] >= 1
