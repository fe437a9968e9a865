"""How a campaign's thread ends, and times and plans that its tests share."""

from __future__ import annotations

from examples.campaign.cadence import Cadence
from perdure.types import State
from tests.support.campaigns import BO, DAY, World

YEAR = 365 * DAY
CY = "cy@example.org"
TWO = Cadence((0, 4))


def ends(office: World, how: str, campaign_id: int = 1, address: str = BO) -> None:
    """The thread is over, everything says so alike, and nothing is left to ask."""
    run = office.run(campaign_id, address)
    assert run.state is State.DONE, (run.state, run.reason, run.error)
    assert run.output["ended"] == how
    assert office.member(campaign_id, address) == how
    assert office.questions(campaign_id, address) == []


def nothing_more(office: World, sent: int) -> None:
    """However long one waits."""
    office.advance(YEAR)
    office.advance(YEAR)
    assert len(office.office.log) == sent
