"""The campaign's month of `make demo`, for more people, stopped in the middle.

Workers are killed all the time, as in the demo: where the plan says and at random. It stops on a
day on which drafts wait for a person and most threads sleep.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest import mock

from rich.console import Console

from examples.campaign.app import App
from examples.campaign.demo import months, plan
from examples.campaign.demo.clock import SharedClock
from examples.campaign.demo.conductor import Conductor
from examples.campaign.demo.crew import warm_up
from examples.campaign.demo.months import Campaign
from examples.campaign.demo.plan import Contact, Manner, Plan
from examples.campaign.demo.play import START
from examples.campaign.demo.postoffice import Fault, Moment, PostOffice, Reply

STOP = START + timedelta(days=17, hours=9)
"""A Thursday, in the third week."""
MORE = (
    ("Lena", "Fjord Textiles", "Europe/Oslo"),
    ("Mateo", "Andes Trekking", "America/Lima"),
    ("Noor", "Gulf Ceramics", "Asia/Dubai"),
    ("Olga", "Baltic Amber", "Europe/Riga"),
    ("Pablo", "Rioja Cellars", "Europe/Madrid"),
    ("Quinn", "Maple Software", "America/Toronto"),
    ("Rosa", "Lisbon Tiles", "Europe/Lisbon"),
    ("Sami", "Aurora Lodges", "Europe/Helsinki"),
    ("Tova", "Gothenburg Bikes", "Europe/Stockholm"),
    ("Uma", "Goa Spices", "Asia/Kolkata"),
)
LATER = (
    *(plan.NEVER_APPROVED, plan.NEVER_ANSWERS, plan.NEVER_APPROVED, plan.REPLIES_ASLEEP),
    *(plan.READ_CLOSELY, plan.NEVER_ANSWERS, plan.OUT_OF_OFFICE, plan.NEVER_APPROVED),
    *(plan.NEVER_ANSWERS, plan.READ_CLOSELY),
)
"""What they do, one after the other."""


BRIEF = "Quiet extractor fans for hotel kitchens"


class Stopped(Conductor):
    """Ends the month on a day, when nothing is driven any more."""

    def _go_on(self) -> bool:
        is_busy = any(seen.busy for seen in self.seen.values())
        return super()._go_on() if is_busy or self._clock.time < STOP else False


def drawn(seed: int) -> Plan:
    """The month of the demo, with ten people more."""
    few = plan.draw(seed, 10)
    chance = random.Random(f"{seed} more")
    people: list[tuple[tuple[str, str, str], Manner]] = list(zip(MORE, LATER, strict=True))
    more = [Contact(n, *who, manner) for n, (who, manner) in enumerate(people, 11)]
    kills = {(one.id, 1 + one.id % 3, chance.choice(list(Moment))) for one in more}
    failing = {(more[0].address, 2): Fault.DROP_AFTER, (more[5].address, 1): Fault.GREYLIST}

    def faults(recipient: str, attempt: int) -> Fault | Reply | None:
        return failing.get((recipient, attempt)) or few.faults(recipient, attempt)

    return Plan(seed, (*few.contacts, *more), few.kills | kills, faults)


@contextlib.contextmanager
def lived(folder: Path, seed: int = 7) -> Iterator[tuple[App, SharedClock]]:
    """The application after the month, with two workers alive, and its clock."""
    month = drawn(seed)
    clock = SharedClock(folder / "clock")
    clock.move_to(START)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(months, "BRIEF", BRIEF))
        office = stack.enter_context(PostOffice(month.faults))
        campaign = stack.enter_context(Campaign(month, folder, office, clock))
        nothing = Console(file=io.StringIO(), force_terminal=False)
        conductor = Stopped(month, campaign, office, clock, nothing)
        office.on = conductor.reached
        warm_up()
        campaign.staff()
        stack.callback(campaign.crew.end)
        conductor.play()
        conductor.over = True
        yield campaign.app, clock
