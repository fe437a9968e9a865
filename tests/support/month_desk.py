"""The person at the desk in the month of tests/support/month.py: who answers what is asked, looks
after mail that matches nothing, and writes again to contacts that bounced by mistake."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from examples.campaign import people, strays
from perdure import errors

if TYPE_CHECKING:
    from tests.support.month import Month

DISMISSED = "crank@elsewhere.example"


class Desk:
    """Answers what is asked, when everything rests. Keeps what it said."""

    def __init__(self, month: Month) -> None:
        self._month, self._app = month, month.app
        self.said: dict[tuple[str, int], list[tuple[str, float]]] = defaultdict(list)
        """What was said to drafts, by address and touch, and when."""
        self.strays: dict[str, str] = {}
        """Who wrote from another address, and from which."""
        self.left_out: dict[tuple[str, str], set[int]] = defaultdict(set)
        """Touches that were left out since the server refused them, by address and campaign."""
        self.given_up: set[str] = set()
        """Who is not written to any more since the server refused his mails."""
        self.troubles: dict[str, list[str]] = defaultdict(list)
        """The questions about each campaign's troubles."""
        self.at_once: list[str] = []
        """Campaigns about whose trouble two questions were open."""
        self.held_by: Counter[str] = Counter()
        """Why threads were held, until a person tried them again."""
        self._patience: dict[str, datetime] = {}
        self._unbounced: set[str] = set()

    def decide(self) -> int:
        """Do what is to be done. Gives how much that was."""
        return (
            self._month.resume()
            + self._look_after_strays()
            + self._unbounce()
            + self._answer_all()
            + self._try_again()
        )

    def _answer_all(self) -> int:
        questions = list(self._questions())
        troubled = Counter(
            one.value["campaign"] for one in questions if one.value["kind"] == "trouble"
        )
        self.at_once += [campaign for campaign, count in troubled.items() if count > 1]
        if troubled:  # what was wrong is mended
            self._month.office.refuses = None
        answer = {"trouble": self._resume, "refusal": self._refused, "approval": self._draft}
        return sum(answer[one.value["kind"]](one) for one in questions)

    def _answer(self, wait: Any, said: dict[str, str]) -> bool:
        """False if what happened meanwhile was faster."""
        with contextlib.suppress(errors.WaitClosed, errors.AlreadyAnswered):
            self._app.runtime.blocking.answer(wait.id, said, by="Eva")
            return True
        return False

    def _resume(self, wait: Any) -> bool:
        self.troubles[wait.value["campaign"]].append(wait.id)
        self._month.counts[f"trouble {wait.value['said'].partition(': ')[2]}"] += 1
        return self._answer(wait, {"action": "resume"})

    def _refused(self, wait: Any) -> bool:
        to, campaign, step = (wait.value[name] for name in ("to", "campaign", "touch"))
        dice = random.Random(f"{self._month.seed}/refusal/{to}/{step}")
        says = dice.choices(["again", "skip", "bounce"], [50, 30, 20])[0]
        if answered := self._answer(wait, {"action": says}):
            self._month.counts[f"refusal {says}"] += 1
            if says == "skip":
                self.left_out[to, campaign].add(step)
            if says == "bounce":
                self.given_up.add(to)
        return answered

    def _draft(self, wait: Any) -> bool:
        month = self._month
        prospect, step = month.prospects[wait.value["to"]], wait.value["touch"]
        is_next = len(month.accepted[prospect.address]) + 1 == prospect.nth
        acts = prospect.act != "nothing" and prospect.address not in month.happened
        if prospect.when == "held" and is_next and acts:
            month.act(prospect)
            return True
        if "problem" in wait.value:  # it was approved before, and is to be tried once more
            month.counts["draft approve again"] += 1
            return self._answer(wait, {"action": "approve"})
        said, decisions = self.said[prospect.address, step], prospect.decisions[step]
        says = decisions[min(len(said), len(decisions) - 1)]
        if says == "never":
            return False
        if says == "slowly":  # not before tomorrow
            since = self._patience.setdefault(wait.id, month.clock.time)
            if month.clock.time < since + timedelta(hours=20):
                return False
        said.append((says, time.monotonic()))
        if answered := self._answer(wait, _answer(says)):
            month.counts[f"draft {says}"] += 1
        return answered

    def _questions(self) -> Iterator[Any]:
        after = None
        while page := self._app.runtime.blocking.waits(kind="human", after=after, limit=500):
            yield from page
            after = page[-1]

    def _try_again(self) -> int:
        client = self._app.runtime.blocking
        held = client.runs(state="held", limit=1000, output=False)
        for run in held:
            self.held_by[str(run.error or run.reason)] += 1
            unknown = client.effects(run.id, state="unknown")
            for effect in unknown:
                client.settle(effect.key, "retry", by="Eva")
            if not unknown:
                client.retry(run.id)
        return len(held)

    def _look_after_strays(self) -> int:
        """Assign what a contact wrote from another address, and put one stranger's mail away."""
        month, done = self._month, 0
        owners = {private: address for address, private in self.strays.items()}
        for stray in strays.strays(self._app, 1000):
            if stray["from"] == DISMISSED:
                strays.dismiss(self._app, stray["id"])
                done += 1
            if stray["from"] not in owners:
                continue
            prospect = month.prospects[owners[stray["from"]]]
            told = month.tell_of(prospect, 0)
            row = strays.assign(self._app, stray["id"], prospect.address)
            month.counts["strays assigned"] += 1
            for happened in told:
                happened.done = time.monotonic()
            told[0].answered = self._answered(prospect.address, row)
            done += 1
        return done

    def _answered(self, address: str, message: Any) -> int:
        """The mail that a stray is about, as it was assigned: the last one that was noted."""
        if message["run_id"] is None:
            return 0
        [touch] = self._app.database.rows(
            "SELECT message_id FROM touches WHERE run_id = :run_id AND step = :step",
            run_id=message["run_id"],
            step=message["step"],
        )
        ids = [mail.message_id for mail in self._month.accepted[address]]
        return ids.index(touch["message_id"]) + 1

    def _unbounce(self) -> int:
        done = 0
        for row in self._app.database.rows("SELECT address FROM contacts WHERE status = 'bounced'"):
            address = row["address"]
            if address in self._unbounced or not self._month.prospects[address].mended:
                continue
            self._unbounced.add(address)
            happened = self._month.happened.get(address)
            if happened and happened.act == "bounce":
                happened.undone = time.monotonic()
            with contextlib.suppress(ValueError):  # he unsubscribed meanwhile, or was removed
                people.unbounce(self._app, address)
                self.given_up.discard(address)
                self._month.counts["bounces undone"] += 1
                done += 1
        return done


def _answer(says: str) -> dict[str, str]:
    if says == "edit":
        return {"action": "edit", "body": "Edited by Eva."}
    if says == "reject":
        return {"action": "reject", "comment": "Shorter, please."}
    return {"action": "skip" if says == "skip" else "approve"}
