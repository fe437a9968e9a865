"""What is asked of D1, at Cloudflare's published prices."""

from __future__ import annotations

from collections.abc import Mapping

from bench.d1_meter import Used
from bench.d1_runtime import ALONE, EFFECT, IDLE, NOTHING_DUE, START, STEP, TOGETHER
from bench.report import Table

REQUESTS, READ, WRITTEN = 0.30, 0.001, 1.00
"""Dollars per million: requests to a Worker, rows read, rows written."""
INCLUDED = Used(requests=10e6, read=25e9, written=50e6)
"""In a month of the paid plan."""
MINUTES = 30 * 24 * 60

PRICES = f"""\
${REQUESTS:.2f} per million requests to a Worker beyond 10 million a month, ${READ:.3f} per million
rows read beyond 25 billion, ${WRITTEN:.2f} per million rows written beyond 50 million, on the paid
plan."""


def prices(used: Mapping[str, Used]) -> Table:
    million = 1e6
    bills = {
        "a month of ticks, one a minute, nothing due": used[NOTHING_DUE].times(MINUTES),
        "a month of one idle worker": used[IDLE].times(MINUTES),
        "a million runs of 1 step, each alone": (used[START] + used[ALONE]).times(million),
        "a million runs of 3 steps, 25 to a tick": (used[START] + used[TOGETHER]).times(million),
        "a million further steps, alone": used[STEP].times(million),
        "a million further effects, alone": used[EFFECT].times(million),
    }
    head = ["", "requests", "rows read", "rows written", "of the included amount", "at list price"]
    rows = [
        [
            what,
            *(f"{n / million:,.2f} M" for n in (bill.requests, bill.read, bill.written)),
            f"{_share(bill):.1%}",
            f"${_dollars(bill):,.2f}",
        ]
        for what, bill in bills.items()
    ]
    return Table(head, rows, "At Cloudflare's published prices")


def _share(bill: Used) -> float:
    """Of the included amount that is used up first."""
    return max(
        bill.requests / INCLUDED.requests,
        bill.read / INCLUDED.read,
        bill.written / INCLUDED.written,
    )


def _dollars(bill: Used) -> float:
    """As if nothing were included."""
    return (bill.requests * REQUESTS + bill.read * READ + bill.written * WRITTEN) / 1e6
