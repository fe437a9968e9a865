"""What keeps failing in this process, by duty and item.

A *duty* is something that a worker does again and again: look for work, claim, fire schedules,
renew leases. An *item* is one row or one sweep that a duty handles. What an item raises concerns
that item alone; what a duty raises concerns that duty alone. Neither ends the loop. A failure is
logged when it is new or another one, and again when it is over; the pauses before it is tried again
grow. Duties that keep failing make `GET /ok` answer 503; metrics count all failures.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator

from perdure.errors import Closed, Error, Unavailable, WriteLost

log = logging.getLogger("perdure")

FIRST = 1.0
"""Seconds before what failed is tried again. Each further failure doubles them."""

LONGEST_OF_DUTY, LONGEST_OF_ITEM = 5.0, 60.0
"""Seconds after which a duty, or an item, is tried again at the latest."""

WORKER = "The worker"
"""The duty of a worker as a whole: it fails if it cannot begin."""

ALARM = 3
"""Failures in a row of a duty that count as an alarm."""

STALE = 1200.0
"""Seconds after which an item that was not tried again counts as gone."""

MOST = 10_000
"""Maximum number of failing items that are remembered."""


class Failure:
    """One duty or item that failed when it was last tried."""

    __slots__ = ("count", "error", "until")

    def __init__(self) -> None:
        self.count, self.until, self.error = 0, 0.0, ""


class Failures:
    """The failures of one process. It may be used from any thread."""

    def __init__(self) -> None:
        self.redact: Callable[[str], str] = str
        """Removes the password of the journal from a message."""
        self._found: OrderedDict[tuple[str, str], Failure] = OrderedDict()
        self._changing = threading.Lock()
        self._said: OrderedDict[str, None] = OrderedDict()
        self.totals: Counter[str] = Counter()
        """Failures since the process began, by duty."""

    def is_resting(self, duty: str, item: str = "") -> bool:
        """Whether it failed, and is not to be tried again yet."""
        found = self._found.get((duty, item))
        return found is not None and time.monotonic() < found.until

    @contextlib.contextmanager
    def guard(self, duty: str, item: str = "") -> Iterator[None]:
        """Note what the block raises, instead of raising it. A journal that is closed ends the
        duty, and one that is unavailable is no fault of an item: both are raised."""
        try:
            yield
        except Closed:
            raise
        except Exception as error:
            if item and isinstance(error, (Unavailable, WriteLost)):
                raise
            self.note(error, duty, item)
        else:
            self.clear(duty, item)

    def note(self, error: Exception, duty: str, item: str = "") -> float:
        """Note a failure, and log it unless it is the same as before. Returns the seconds until it
        is to be tried again. Of an error that is not perdure's own only the type and the place are
        logged: its text may quote what a person wrote."""
        said = self.redact(str(error)) if isinstance(error, Error) else type(error).__qualname__
        longest = LONGEST_OF_ITEM if item else LONGEST_OF_DUTY
        if isinstance(error, (Unavailable, WriteLost)):
            longest = FIRST
        with self._changing:
            found = self._found.pop((duty, item), None) or Failure()
            is_new = found.error != said
            pause: float = min(longest, FIRST * 2 ** min(found.count, 10))
            found.count, found.error, found.until = found.count + 1, said, time.monotonic() + pause
            self._found[duty, item] = found
            self.totals[duty] += 1
            if len(self._found) > MOST:
                self._found.popitem(last=False)
        if is_new:
            frames = (
                [] if isinstance(error, Error) else traceback.format_tb(error.__traceback__)[-8:]
            )
            text = "".join([said, "\n", *frames]).rstrip()
            log.warning("%s failed and will be retried: %s", _name(duty, item), text)
        return pause

    def clear(self, duty: str, item: str = "") -> None:
        """Note that it works, or is gone."""
        if (duty, item) in self._found:
            with self._changing:
                found = self._found.pop((duty, item), None)
            if found is not None:
                log.info("%s works again after %d failures.", _name(duty, item), found.count)

    def is_news(self, fact: str) -> bool:
        """Whether a fact was not asked about before, so that it is logged once."""
        is_new = fact not in self._said
        self._said[fact] = None
        if len(self._said) > MOST:
            self._said.popitem(last=False)
        return is_new

    def keep_only(self, duty: str, items: Collection[str]) -> None:
        """Forget the items of a duty that are not among these: they are gone."""
        for one, item in list(self._found):
            if one == duty and item and item not in items:
                self.clear(duty, item)

    @property
    def failing(self) -> dict[str, int]:
        """How many items of each duty fail; the duty itself counts as one."""
        now = time.monotonic()
        with self._changing:  # an item that is not tried again is gone
            tried = [key for key, one in self._found.items() if now < one.until + STALE]
        return dict(Counter(duty for duty, _ in tried))

    @property
    def alarm(self) -> str | None:
        """Why a worker's loop in this process does not do its work, or None if it does."""
        with self._changing:
            bad = [
                f"{duty} failed {found.count} times in a row: {found.error}"
                for (duty, item), found in self._found.items()
                if not item and found.count >= ALARM
            ]
        return "; ".join(bad) or None


def _name(duty: str, item: str) -> str:
    return f"{duty} ({item!r})" if item else duty
