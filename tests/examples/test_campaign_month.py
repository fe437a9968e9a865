"""A whole month of the campaign under everything that can go wrong, judged from outside.

Workers and crons are killed the whole time, the mail server fails in every way it knows, prospects
write at every moment: before the first touch, while one is sent, right after, asleep, while a draft
is held, when all is over. What must hold then is asked of the mail server's own log.

`CAMPAIGN_CONTACTS=1000` (`make campaign-month`) is the month that docs/campaign-month.md shows, and
so is `CAMPAIGN_CONTACTS=60` on D1 (`make campaign-month-d1`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from examples.campaign.database import sql
from examples.campaign.postoffice import Fault, Mail, Moment
from perdure.operations import invariants
from perdure.testing.d1 import Workerd
from perdure.types import State
from tests.support import sweep
from tests.support.campaigns import earned_by
from tests.support.faulty_proxy import PASSING, FaultyProxy
from tests.support.faulty_proxy import Fault as NetworkFault
from tests.support.fork_server import ForkServer
from tests.support.month import ENDS, TOUCHES, Month, Prospect

CONTACTS = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 30)))
ON_D1 = int(os.environ.get("CAMPAIGN_CONTACTS", sweep.examples(60, 3)))
SEED = int(os.environ.get("CAMPAIGN_SEED", "7"))
FAILING = [fault for fault in PASSING if fault is not NetworkFault.SLOW]
GAPS = (0, 4, 7, 7, 7, 7)


def step_of(mail: Mail) -> int:
    """Which touch a mail is, as its reader sees it."""
    found = re.fullmatch(r"Better tables \((\d)\)", mail.subject)
    assert found, mail.subject
    return int(found[1])


class Judge:
    """What must be true of a month, whatever was killed when."""

    def __init__(self, month: Month) -> None:
        self.month, self.log = month, month.office.log
        self.mails: dict[str, list[Mail]] = {address: [] for address in month.prospects}
        for mail in self.log:
            self.mails[mail.recipient].append(mail)
        self.runs = {
            (run.metadata["campaign_id"], run.metadata["contact_id"]): run
            for run in month.app.runtime.blocking.runs(limit=10 * len(month.prospects))
        }
        campaigns, self.members, touches = month.app.database.read(
            sql("SELECT * FROM campaigns"),
            sql(
                """SELECT m.*, c.address FROM members m JOIN contacts c ON c.id = m.contact_id
                   ORDER BY m.campaign_id, m.contact_id"""
            ),
            sql("SELECT * FROM touches ORDER BY step"),
        )
        self.campaigns = {row["id"]: row["name"] for row in campaigns}
        self.touches: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in touches:
            place = row["campaign_id"], row["contact_id"]
            self.touches.setdefault(place, []).append(row)

    # -- no mail twice, and none that nobody wants

    def duplicates(self) -> list[str]:
        """Mails the provider took a second time, by their Message-ID or by their touch."""
        ids = Counter(mail.message_id for mail in self.log)
        touches = Counter(f"touch {step_of(mail)} to {mail.recipient}" for mail in self.log)
        return [what for what, n in (ids + touches).items() if n > 1]

    def after_the_end(self) -> list[str]:
        """Mails that the provider took although it agreed to their recipient only when what ends
        it all had been taken in."""
        return [
            f"touch {step_of(mail)} to {mail.recipient} after {ended.act}"
            for mail in self.log
            if (ended := self.month.happened.get(mail.recipient)) and ended.act != "automatic"
            if self.month.released[mail.conversation] > ended.done
        ]

    def unapproved(self) -> list[str]:
        """Mails whose draft nobody had approved when their conversation began, or with a text that
        is not the one approved."""
        bad = []
        for mail in self.log:
            place = mail.recipient, step_of(mail)
            if "held" not in self.month.prospects[mail.recipient].campaigns:
                continue
            said = self.month.said[place]
            last, at = said[-1] if said else ("nothing", float("inf"))
            edited = "Edited by Eva." in mail.content
            if last not in ("approve", "edit", "slowly") or at > mail.began:
                bad.append(f"{place}: {last}")
            if edited != (last == "edit") or ("Written again" in mail.content and len(said) < 2):
                bad.append(f"{place}: another text than the one approved")
        return bad

    def out_of_hours(self) -> Iterator[str]:
        """Mails outside of the hours of who got them, or too soon after the one before."""
        for address, mails in self.mails.items():
            zone = ZoneInfo(self.month.prospects[address].zone)
            times = [self.month.virtual[mail.conversation].astimezone(zone) for mail in mails]
            for at in times:
                if at.weekday() > 4 or not 9 <= at.hour < 17:
                    yield f"{address} at {at}"
            for before, after, mail in zip(times, times[1:], mails[1:], strict=False):
                gap = after.replace(tzinfo=None) - before.replace(tzinfo=None)
                if gap < timedelta(days=GAPS[step_of(mail) - 1], minutes=-1):
                    yield f"{address} again after {gap}"

    # -- every thread at the right end

    def wrong_ends(self) -> Iterator[str]:
        for member in self.members:
            place = member["campaign_id"], member["contact_id"]
            prospect, run = self.month.prospects[member["address"]], self.runs[place]
            ends = self._ends(prospect, self.campaigns[place[0]])
            found = (run.state, member["status"])
            told = f"{prospect} did {self.month.happened.get(prospect.address)}: {run.thread_id}"
            if found not in ends:
                yield f"{told} is {found}, not {ends}"
            # A reply to the last touch of all comes when its thread has told its end.
            if self._told_end(place) not in (member["status"], "finished"):
                yield f"{told} says {self._told_end(place)}, its row {member['status']}"

    def _told_end(self, place: tuple[int, int]) -> str:
        """What a thread itself said in the end."""
        run = self.runs[place]
        return str(run.output["ended"]) if run.state is State.DONE else "active"

    def _ends(self, prospect: Prospect, campaign: str) -> list[tuple[State, str]]:
        """How this thread may be now, from what was seen outside of it."""
        happened = self.month.happened.get(prospect.address)
        ended = happened is not None and happened.act != "automatic"
        possible: set[str] = set()
        if happened is not None and ended:
            possible.add(ENDS.get(happened.act, happened.act))
            if prospect.when == "late":
                possible = self._late_ends(prospect, campaign, possible)
        if self._is_refused(prospect.address):  # by whoever spoke last
            possible = possible | {"bounced"} if ended and prospect.when != "late" else {"bounced"}
        if not ended and self._waits_for_ever(prospect):
            return [(State.WAITING, "active")]
        return [(State.DONE, status) for status in sorted(possible or {"finished"})]

    def _late_ends(self, prospect: Prospect, campaign: str, acted: set[str]) -> set[str]:
        """After the end only a reply counts, for the campaign that earned it."""
        if self._waits_for_ever(prospect):
            return acted
        if len(prospect.campaigns) > 1:  # one of them sent the last touch
            return {"finished", *(acted & {"replied"})}
        return acted if acted == {"replied"} and self.mails[prospect.address] else {"finished"}

    def _is_refused(self, address: str) -> bool:
        spoken = [one for one in self.month.office.conversations if one.recipient == address]
        return bool(spoken) and spoken[-1].fault is Fault.REJECT_RECIPIENT

    def _waits_for_ever(self, prospect: Prospect) -> bool:
        """Whether it came to a draft about which nobody says the last word."""
        for step in range(1, TOUCHES + 1):
            said = [says for says, _ in self.month.said.get((prospect.address, step), [])]
            if "held" in prospect.campaigns and prospect.decisions[step][len(said) :] == ["never"]:
                reached = self._expected_before(prospect, step)
                return reached == [step_of(mail) for mail in self.mails[prospect.address]]
        return False

    def _expected_before(self, prospect: Prospect, step: int) -> list[int]:
        """The touches before one, if nothing ends it, without those that a person left out."""
        held = "held" in prospect.campaigns
        return [
            one for one in range(1, step) if not (held and prospect.decisions[one][-1] == "skip")
        ]

    def wrong_touches(self) -> Iterator[str]:
        """A thread has sent one touch after the other, all of them if it came to the end; and its
        tables say what the provider's log says."""
        sent: dict[str, list[int]] = {address: [] for address in self.mails}
        for member in self.members:
            place, address = (member["campaign_id"], member["contact_id"]), member["address"]
            prospect, rows = self.month.prospects[address], self.touches.get(place, [])
            steps = [step_of(mail) for mail in self.mails[address]]
            whole = self._expected_before(prospect, TOUCHES + 1)
            if steps != whole[: len(steps)]:
                yield f"{address} got {steps}"
            if self._told_end(place) == "finished" and steps != whole:
                yield f"{address} got {steps}, and his thread is finished"
            sent[address] += [row["step"] for row in rows if row["sent_at"] is not None]
        for address, noted in sent.items():
            if sorted(noted) != [step_of(mail) for mail in self.mails[address]]:
                yield f"{address}: {sorted(noted)} are noted as sent"

    def wrong_scores(self) -> Iterator[str]:
        """Each touch that was sent has its outcome, on the effect that sent it: 1 if it earned the
        reply, else 0."""
        earned: Counter[str] = Counter()
        for member in self.members:
            place, address = (member["campaign_id"], member["contact_id"]), member["address"]
            happened, run = self.month.happened.get(address), self.runs[place]
            replied = happened is not None and happened.act == "reply" and happened.answered
            answered = step_of(self.mails[address][replied - 1]) if replied else 0
            told = earned_by(self.month.app, run.id)
            rows = [row for row in self.touches.get(place, []) if row["outcome"] is not None]
            if run.state is State.DONE and told != {
                f"touch {row['step']}": row["outcome"] for row in rows
            }:
                yield f"{run.thread_id}: {told}, but {rows}"
            for row in rows:
                earned[address] += row["outcome"] == 1.0
                if (row["outcome"] == 1.0) != (row["step"] == answered) and len(rows) == len(
                    self.mails[address]
                ):
                    yield f"{run.thread_id}: touch {row['step']} earned {row['outcome']}"
            if run.state is State.DONE and any(
                row["sent_at"] is not None and row["outcome"] is None
                for row in self.touches.get(place, [])
            ):
                yield f"{run.thread_id}: a touch without an outcome"
        for address, happened in self.month.happened.items():
            if earned[address] != (happened.act == "reply" and happened.answered > 0):
                yield f"{address} replied, and {earned[address]} touches earned it"


def figures(month: Month, judge: Judge) -> dict[str, Any]:
    """What happened, for docs/campaign-month.md."""
    counts = month.counts
    faults = Counter(
        one.fault.value for one in month.office.conversations if one.fault and one.reached
    )
    moments = [*Moment, "early", "asleep", "held", "late"]
    acts = ("reply", "bounce", "unsubscribe", "removed", "automatic")
    return {
        "contacts": len(month.prospects),
        "threads": len(judge.members),
        "conversations": len(month.office.conversations),
        "touches sent": len(judge.log),
        "duplicates": len(judge.log) - len({(one.recipient, step_of(one)) for one in judge.log}),
        "sends after an end was received": len(judge.after_the_end()),
        "processes killed": dict(month.crew.killed),
        "sends in which they were": {str(m): counts[f"killed at {m}"] for m in Moment},
        "faults": dict(sorted(faults.items())),
        **{act: {str(m): n for m in moments if (n := counts[f"{act} {m}"])} for act in acts},
        "drafts": {
            name.removeprefix("draft "): n for name, n in sorted(counts.items()) if "draft" in name
        },
        "held, and retried by a person": dict(month.held_by),
        "ends": dict(Counter(member["status"] for member in judge.members)),
        "waves": counts["waves"],
        "seconds": round(month.took),
    }


def assert_right(judge: Judge) -> None:
    """No mail twice, none after a reply, none unapproved, and every thread at the right end."""
    for name, value in figures(judge.month, judge).items():
        print(f"{name}: {value}")
    assert judge.duplicates() == []
    assert judge.after_the_end() == []
    assert judge.unapproved() == []
    assert list(judge.out_of_hours()) == []
    assert list(judge.wrong_ends()) == []
    assert list(judge.wrong_touches()) == []
    assert list(judge.wrong_scores()) == []
    assert judge.month.app.runtime.journal.do(invariants.examine()) == []


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_month_in_which_everything_goes_wrong(
    fork_server: ForkServer, url: str, tmp_path: Path
) -> None:
    with Month(fork_server, url, tmp_path, CONTACTS, SEED) as month:
        month.run(seconds=300 + 2 * CONTACTS)
        assert_right(Judge(month))
        assert sum(month.crew.killed.values()) >= CONTACTS / 20


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
