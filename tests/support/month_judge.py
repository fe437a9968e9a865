"""What must be true of a month of the campaign, whatever was killed when.

The mail server's own log and what was seen outside of the application decide: what each prospect
and each person did says which mails may be in the log, and how each thread has to end.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from examples.campaign import trouble
from examples.campaign.app import GRAPH
from examples.campaign.database import sql
from examples.campaign.faults import REPLIES
from examples.campaign.postoffice import Fault, Mail, Moment
from examples.campaign.writer import ANEW
from perdure.operations import invariants
from perdure.types import State
from tests.support.campaigns import earned_by
from tests.support.month import APART, PAUSE, STRANGERS, Month
from tests.support.month_desk import DISMISSED
from tests.support.prospects import BRIEFS, ENDS, TOUCHES, Prospect

GAPS = (0, 4, 7, 7, 7, 7)
A_MOMENT = timedelta(minutes=1)
"""How long a conversation may take: a turn is looked at when it begins."""
LATE = timedelta(seconds=5)
"""How long after its beginning a conversation may come to the recipient."""


def step_of(mail: Mail) -> int:
    """Which touch a mail is, as its reader sees it."""
    return int(_subject(mail)[2])


def brief_of(mail: Mail) -> str:
    return _subject(mail)[1]


def _subject(mail: Mail) -> re.Match[str]:
    found = re.fullmatch(rf"({'|'.join(set(BRIEFS.values()))}) \((\d)\)", mail.subject)
    assert found, mail.subject
    return found


class Judge:
    """Of one month."""

    def __init__(self, month: Month) -> None:
        self.month, self.log, self.desk = month, month.office.log, month.desk
        self.mails: dict[str, list[Mail]] = {address: [] for address in month.prospects}
        for mail in self.log:
            self.mails[mail.recipient].append(mail)
        self.spoken: dict[str, list[Mail]] = defaultdict(list)
        for mail in month.office.conversations:
            self.spoken[mail.recipient].append(mail)
        client = month.app.runtime.blocking
        self.runs: dict[tuple[int, int], list[Any]] = defaultdict(list)
        """Those of each thread, the last one first: who bounced by mistake has two."""
        for run in client.runs(graph=GRAPH, limit=10 * len(month.prospects)):
            self.runs[run.metadata["campaign_id"], run.metadata["contact_id"]].append(run)
        self.questions = client.runs(graph=trouble.GRAPH, limit=10 * len(month.prospects))
        self.campaigns, self.contacts, self.members, touches, self.strays = month.app.database.read(
            sql("SELECT * FROM campaigns"),
            sql("SELECT * FROM contacts"),
            sql(
                """SELECT m.*, c.address FROM members m JOIN contacts c ON c.id = m.contact_id
                       ORDER BY m.campaign_id, m.contact_id"""
            ),
            sql("SELECT * FROM touches ORDER BY step"),
            sql("SELECT address FROM messages WHERE kind = 'stray'"),
        )
        self.names = {row["id"]: row["name"] for row in self.campaigns}
        self.touches: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        self.campaign_of: dict[str, str] = {}
        """By the Message-ID of a mail."""
        for row in touches:
            self.touches[row["campaign_id"], row["contact_id"]].append(row)
            self.campaign_of[row["message_id"]] = self.names[row["campaign_id"]]

    # -- no mail twice, and none that nobody wants

    def duplicates(self) -> list[str]:
        """Mails the provider took a second time, by their Message-ID or by their touch."""
        ids = Counter(mail.message_id for mail in self.log)
        touches = Counter(f"{mail.subject} to {mail.recipient}" for mail in self.log)
        return [what for what, n in (ids + touches).items() if n > 1]

    def after_the_end(self) -> list[str]:
        """Mails that the provider took although it agreed to their recipient only when what ends
        it all had been taken in: from him, or from somebody to whom his mail was forwarded."""
        return [
            f"{mail.subject} to {mail.recipient} after {ended.act}"
            for mail in self.log
            if (ended := self.month.happened.get(mail.recipient)) and ended.act != "automatic"
            if ended.done < self.month.released[mail.conversation] < ended.undone
        ]

    def in_a_rest(self) -> list[str]:
        """Mails that the provider took although it agreed to their recipient only when their
        campaign had been paused, or stopped."""
        return [
            f"{mail.subject} to {mail.recipient} while {rest.campaign} did not run"
            for mail in self.log
            for rest in self.month.rests
            if self.campaign_of[mail.message_id] == rest.campaign
            if rest.since < self.month.released[mail.conversation] < rest.until
        ]

    def unapproved(self) -> list[str]:
        """Mails whose draft nobody had approved when their conversation began, or with a text that
        is not the one approved."""
        bad = []
        for mail in self.log:
            place = mail.recipient, step_of(mail)
            if "held" not in self.month.prospects[mail.recipient].campaigns:
                continue
            said = self.desk.said[place]
            last, at = said[-1] if said else ("nothing", float("inf"))
            edited = "Edited by Eva." in mail.content
            if last not in ("approve", "edit", "slowly") or at > mail.began:
                bad.append(f"{place}: {last}")
            if edited != (last == "edit") or (ANEW in mail.content and len(said) < 2):
                bad.append(f"{place}: another text than the one approved")
        return bad

    # -- when mails went out

    def out_of_hours(self) -> Iterator[str]:
        """Mails outside of the hours of who got them, or too soon after the one before."""
        for address, mails in self.mails.items():
            zone = ZoneInfo(self.month.prospects[address].zone)
            for mail in mails:
                at = self.month.virtual[mail.conversation].astimezone(zone)
                if at.weekday() > 4 or not 9 <= at.hour < 17:
                    yield f"{address} at {at}"
            for brief in set(BRIEFS.values()):
                of_one = [mail for mail in mails if brief_of(mail) == brief]
                for before, after in pairwise(of_one):
                    times = [
                        self.month.virtual[one.conversation].astimezone(zone).replace(tzinfo=None)
                        for one in (before, after)
                    ]
                    if times[1] - times[0] < timedelta(days=GAPS[step_of(after) - 1], minutes=-1):
                        yield f"{address} again after {times[1] - times[0]}"

    def too_close(self) -> Iterator[str]:
        """Mails of different sequences to one person, under any of his addresses, within the days
        that are to be between them."""
        to: dict[str, list[Mail]] = defaultdict(list)
        for mail in self.log:
            to[self.month.prospects[mail.recipient].person].append(mail)
        for person, mails in to.items():
            for before, after in pairwise(mails):
                gap = (
                    self.month.virtual[after.conversation] - self.month.virtual[before.conversation]
                )
                if brief_of(before) != brief_of(after) and gap < timedelta(days=APART) - A_MOMENT:
                    yield f"{person}: {after.subject} {gap} after {before.subject}"

    def too_many(self) -> Iterator[str]:
        """Days on which the sender with a limit sent more, and mails to a domain too soon after the
        one before."""
        days: Counter[Any] = Counter()
        to: dict[str, list[Any]] = defaultdict(list)
        for mail in self.log:
            at = self.month.virtual[mail.conversation]
            if mail.sender == "bea@example.com":
                days[at.date()] += 1
            to[mail.recipient.partition("@")[2]].append(at)
        yield from (f"{n} on {day}" for day, n in days.items() if n > self.month.per_day)
        for domain, times in to.items():
            for before, after in pairwise(sorted(times)):
                if after - before < PAUSE - LATE:
                    yield f"two to {domain} within {after - before}"

    # -- nobody is lost

    def lost(self) -> Iterator[str]:
        """Who is not written to any more, although neither his server, a report nor a person said
        that he is not there: it was the sender's mistake."""
        for row in [*self.contacts, *self.members]:
            if row["status"] != "bounced":
                continue
            address, happened = row["address"], self.month.happened.get(row["address"])
            reported = happened and happened.act == "bounce" and happened.undone == float("inf")
            if not (self._is_refused(address) or reported or address in self.desk.given_up):
                prospect = self.month.prospects[address]
                said = [one.reply and one.reply.text for one in self.spoken[address]]
                yield f"{address} ({prospect.campaigns}, {happened}) was told {said}"

    def wrong_questions(self) -> Iterator[str]:
        """A campaign in trouble is asked about once, and goes on."""
        yield from (f"{campaign} is asked about twice" for campaign in self.desk.at_once)
        for row in self.campaigns:
            asked = self.desk.troubles[row["name"]]
            runs = [run for run in self.questions if run.metadata["campaign_id"] == row["id"]]
            if len(set(asked)) != len(asked) or not len(asked) <= len(runs) <= row["troubles"]:
                yield f"{row['name']}: {row['troubles']} troubles, {len(runs)} runs, {asked}"
            if any(run.state is not State.DONE for run in runs):
                yield f"{row['name']}: {[run.state for run in runs]}"
            if row["state"] != ("stopped" if row["name"] == "ended" else "running"):
                yield f"{row['name']} is {row['state']}: {row['trouble']}"

    def wrong_strays(self) -> list[str]:
        """Mail that matches nothing is listed until a person has said what becomes of it."""
        found = sorted(row["address"] for row in self.strays)
        return [] if found == sorted({*STRANGERS} - {DISMISSED}) else found

    # -- every thread at the right end

    def wrong_ends(self) -> Iterator[str]:
        for member in self.members:
            place = member["campaign_id"], member["contact_id"]
            prospect, run = self.month.prospects[member["address"]], self.runs[place][0]
            ends = self._ends(prospect, self.names[place[0]])
            found = (run.state, member["status"])
            told = f"{prospect} did {self.month.happened.get(prospect.address)}: {run.thread_id}"
            if found not in ends:
                yield f"{told} is {found}, not {ends}"
            # A reply to the last touch of all comes when its thread has told its end.
            end = self._told_end(place)
            late = member["status"] == "replied" and end == "bounced"
            if end not in (member["status"], "finished") and not late:
                yield f"{told} says {end}, its row {member['status']}"

    def _told_end(self, place: tuple[int, int]) -> str:
        """What a thread itself said in the end."""
        run = self.runs[place][0]
        return str(run.output["ended"]) if run.state is State.DONE else "active"

    def _ends(self, prospect: Prospect, campaign: str) -> list[tuple[State, str]]:
        """How this thread may be now, from what was seen outside of it."""
        happened = self.month.happened.get(prospect.address)
        ended = happened is not None and happened.act != "automatic"
        ended = ended and happened is not None and happened.undone == float("inf")
        possible: set[str] = set()
        if happened is not None and ended:
            possible.add(ENDS.get(happened.act, happened.act))
            if prospect.when == "late":
                possible = self._late_ends(prospect, campaign, possible)
            elif self._was_over(prospect, campaign, happened.began):
                possible.add("finished")
        if self._is_refused(prospect.address) or prospect.address in self.desk.given_up:
            # the last word counts; one thread of several may have been over by then
            over = self._was_over(prospect, campaign, float("inf"))
            others = possible if ended else {"finished"} if over else set()
            possible = {"bounced", *others}
        if campaign == "ended":
            possible = self._stopped_ends(prospect, possible)
        if not ended and self._waits_for_ever(prospect):
            return [(State.WAITING, "active")]
        return [(State.DONE, status) for status in sorted(possible or {"finished"})]

    def _was_over(self, prospect: Prospect, campaign: str, at: float) -> bool:
        """Whether one thread of several may have come to its end before something happened."""
        before = [
            step_of(mail)
            for mail in self.mails[prospect.address]
            if brief_of(mail) == BRIEFS[campaign] and self.month.released[mail.conversation] < at
        ]
        several = prospect.of or len(prospect.campaigns) > 1
        return bool(several) and before == self._expected_before(prospect, TOUCHES + 1, campaign)

    def _stopped_ends(self, prospect: Prospect, possible: set[str]) -> set[str]:
        """Of a campaign that was stopped, unless something ended the thread before."""
        [rest] = [rest for rest in self.month.rests if rest.campaign == "ended"]
        happened = self.month.happened.get(prospect.address)
        if happened is None or happened.began > rest.since:
            possible = {one for one in possible if one == "bounced"}
            return possible | {"stopped"}
        return possible or {"stopped"}

    def _late_ends(self, prospect: Prospect, campaign: str, acted: set[str]) -> set[str]:
        """After the end only a reply counts, for the campaign that earned it."""
        if prospect.of:
            return {"finished"}
        if self._waits_for_ever(prospect):
            return acted
        if len(prospect.campaigns) > 1:  # one of them sent the last touch
            return {"finished", *(acted & {"replied"})}
        return acted if acted == {"replied"} and self.mails[prospect.address] else {"finished"}

    def _is_refused(self, address: str) -> bool:
        spoken = self.spoken[address]
        return bool(spoken) and spoken[-1].reply == REPLIES[Fault.REJECT_RECIPIENT]

    def _waits_for_ever(self, prospect: Prospect) -> bool:
        """Whether it came to a draft about which nobody says the last word."""
        for step in range(1, TOUCHES + 1):
            said = [says for says, _ in self.desk.said.get((prospect.address, step), [])]
            if "held" in prospect.campaigns and prospect.decisions[step][len(said) :] == ["never"]:
                reached = self._expected_before(prospect, step, "held")
                return reached == [step_of(mail) for mail in self.mails[prospect.address]]
        return False

    def _expected_before(self, prospect: Prospect, step: int, campaign: str) -> list[int]:
        """The touches before one, if nothing ends it, without those that a person left out."""
        left_out = self.desk.left_out[prospect.address, campaign]
        held = "held" in prospect.campaigns
        return [
            one
            for one in range(1, step)
            if not (held and prospect.decisions[one][-1] == "skip") and one not in left_out
        ]

    def wrong_touches(self) -> Iterator[str]:
        """A thread has sent one touch after the other, all of them if it came to the end; and its
        tables say what the provider's log says."""
        sent: dict[tuple[str, str], list[int]] = defaultdict(list)
        for member in self.members:
            place, address = (member["campaign_id"], member["contact_id"]), member["address"]
            prospect, name = self.month.prospects[address], self.names[place[0]]
            steps = self._steps(address, BRIEFS[name])
            whole = self._expected_before(prospect, TOUCHES + 1, name)
            if "again" in prospect.campaigns:  # what one of them leaves out, the other sends
                whole = [one for one in range(1, TOUCHES + 1) if one in whole or one in steps]
            if steps != whole[: len(steps)]:
                yield f"{address} got {steps}"
            if self._told_end(place) == "finished" and steps != whole:
                yield f"{address} got {steps}, and his thread is finished"
            rows = self.touches[place]
            sent[address, BRIEFS[name]] += [
                row["step"] for row in rows if row["sent_at"] is not None
            ]
        for (address, brief), noted in sent.items():
            if sorted(noted) != self._steps(address, brief):
                yield f"{address}: {sorted(noted)} are noted as sent"

    def _steps(self, address: str, brief: str) -> list[int]:
        return [step_of(mail) for mail in self.mails[address] if brief_of(mail) == brief]

    def wrong_scores(self) -> Iterator[str]:
        """Each touch that was sent has its outcome, on the effect that sent it: 1 if it earned the
        reply, else 0."""
        earned: Counter[str] = Counter()
        for member in self.members:
            place, address = (member["campaign_id"], member["contact_id"]), member["address"]
            happened, run = self.month.happened.get(address), self.runs[place][0]
            replied = happened is not None and happened.act == "reply" and happened.answered
            answered = self.mails[address][replied - 1].message_id if replied else ""
            rows = [row for row in self.touches[place] if row["outcome"] is not None]
            if run.state is State.DONE and self._told_scores(place) != {
                f"touch {row['step']}": row["outcome"] for row in rows
            }:
                yield f"{run.thread_id}: {self._told_scores(place)}, but {rows}"
            for row in rows:
                earned[address] += row["outcome"] == 1.0
                if (row["outcome"] == 1.0) != (row["message_id"] == answered):
                    yield f"{run.thread_id}: touch {row['step']} earned {row['outcome']}"
            if run.state is State.DONE and any(
                row["sent_at"] is not None and row["outcome"] is None for row in self.touches[place]
            ):
                yield f"{run.thread_id}: a touch without an outcome"
        for address, happened in self.month.happened.items():
            if earned[address] != (happened.act == "reply" and happened.answered > 0):
                yield f"{address} replied, and {earned[address]} touches earned it"

    def _told_scores(self, place: tuple[int, int]) -> dict[str, float | None]:
        told: dict[str, float | None] = {}
        for run in reversed(self.runs[place]):
            told |= earned_by(self.month.app, run.id)
        return told


def figures(month: Month, judge: Judge) -> dict[str, Any]:
    """What happened, for docs/evidence.md."""
    counts = month.counts
    faults = Counter(
        one.fault.value for one in month.office.conversations if one.fault and one.reached
    )
    moments = [*Moment, "early", "asleep", "held", "late"]
    acts = ("reply", "bounce", "unsubscribe", "removed", "automatic")

    def counted(what: str) -> dict[str, int]:
        return {name.removeprefix(what): n for name, n in sorted(counts.items()) if what in name}

    return {
        "contacts": len(month.prospects),
        "threads": len(judge.members),
        "conversations": len(month.office.conversations),
        "touches sent": len(judge.log),
        "duplicates": len(judge.duplicates()),
        "sends after an end was received": len(judge.after_the_end()),
        "sends of a campaign that was paused or stopped": len(judge.in_a_rest()),
        "sends outside of hours": len(list(judge.out_of_hours())),
        "sends too close to another campaign's": len(list(judge.too_close())),
        "sends over a limit": len(list(judge.too_many())),
        "contacts lost": len(list(judge.lost())),
        "processes killed": dict(month.crew.killed),
        "sends in which they were": {str(m): counts[f"killed at {m}"] for m in Moment},
        "faults": dict(sorted(faults.items())),
        "sender refused": counts["sender refused"],
        "troubles": {row["name"]: row["troubles"] for row in judge.campaigns},
        "troubles asked about": counted("trouble "),
        "refusals asked about": counted("refusal "),
        **{act: {str(m): n for m in moments if (n := counts[f"{act} {m}"])} for act in acts},
        "unsubscribed": counted("unsubscribed by "),
        "ended with them": counted(" with "),
        "strays assigned": counts["strays assigned"],
        "bounces undone": counts["bounces undone"],
        "drafts": counted("draft "),
        "held, and retried by a person": dict(month.desk.held_by),
        "ends": dict(Counter(member["status"] for member in judge.members)),
        "waves": counts["waves"],
        "seconds": round(month.took),
    }


def assert_right(judge: Judge) -> None:
    """No mail twice, none after a reply, none unapproved, and every thread at the right end."""
    for name, value in figures(judge.month, judge).items():
        print(f"{name}: {value}")
    checks = (
        judge.duplicates,
        judge.after_the_end,
        judge.in_a_rest,
        judge.unapproved,
        judge.out_of_hours,
        judge.too_close,
        judge.too_many,
        judge.lost,
        judge.wrong_questions,
        judge.wrong_strays,
        judge.wrong_ends,
        judge.wrong_touches,
        judge.wrong_scores,
    )
    found = {check.__name__: list(check()) for check in checks}
    found["held"] = list(judge.desk.held_by)  # by nothing a server says, and no worker's death
    found["doctor"] = [str(one) for one in judge.month.app.runtime.journal.do(invariants.examine())]
    wrong = {name: findings for name, findings in found.items() if findings}
    assert not wrong, wrong
