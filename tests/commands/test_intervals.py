"""Intervals equal what the literature prints, and stay sensible where there is little to go by."""

from __future__ import annotations

import pytest

from perdure.views import formatting, intervals
from perdure.views.intervals import Estimate

# Student's sleep data, the extra hours under two drugs, as in R's `sleep`
ONE = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
TWO = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def span(one: Estimate | None, digits: int = 4) -> tuple[float, float]:
    assert one is not None
    assert one.low is not None
    assert one.high is not None
    return round(one.low, digits), round(one.high, digits)


@pytest.mark.parametrize(
    ("p", "freedom", "quantile"),
    [(0.975, 1, 12.7062), (0.95, 5, 2.0150), (0.975, 10, 2.2281), (0.025, 2, -4.3027)],
)
def test_quantiles_of_students_t_are_those_of_the_tables(
    p: float, freedom: float, quantile: float
) -> None:
    assert intervals.t_quantile(p, freedom) == pytest.approx(quantile, abs=5e-5)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_a_share_has_the_score_interval_that_newcombe_prints_for_wilson(
    hits: int, n: int, low: float, high: float
) -> None:
    one = intervals.estimate([True] * hits + [False] * (n - hits))
    assert one == intervals.share(hits, n)
    assert span(one) == (low, high)


def test_a_difference_of_paired_shares_has_newcombes_interval() -> None:
    # airway hyper-responsiveness before and after a transplantation (Bentur et al. 2009): -0.286
    before, after = [1, 1] + [0] * 19, [1, 0] + [1] * 7 + [0] * 12
    moved = intervals.paired_difference(after, before)
    assert moved is not None
    assert (round(moved.value, 3), *span(moved, 3)) == (-0.286, -0.507, -0.026)
    assert moved.apart_from_zero


def test_means_and_their_differences_have_the_intervals_that_r_prints_for_students_sleep() -> None:
    assert span(intervals.paired_difference(TWO, ONE)) == (-2.4599, -0.7001)
    assert span(intervals.estimate(ONE)) == (-0.5298, 2.0298)


def test_little_data_gives_no_interval_or_a_wide_one() -> None:
    assert intervals.estimate([]) is None
    assert intervals.paired_difference([], []) is None
    assert intervals.estimate([0.3]) == Estimate(0.3, None, None, 1)
    assert span(intervals.estimate([1, 1, 1, 1, 1]), 2) == (0.57, 1.0)
    nothing_moved = intervals.paired_difference([1, 0, 1], [1, 0, 1])
    assert nothing_moved is not None
    assert not nothing_moved.apart_from_zero
    with pytest.raises(ValueError, match="3 values cannot be paired with 2"):
        intervals.paired_difference([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="3 of 2 is not a share"):
        intervals.share(3, 2)


def test_a_figure_is_written_with_its_interval_and_its_count() -> None:
    assert formatting.estimate(intervals.share(10, 12)) == "83 % (55–95 %, n = 12)"
    assert formatting.estimate(intervals.mean([0.3])) == "0.300 (n = 1)"
    assert formatting.estimate(None) == "–"
    moved = formatting.difference(intervals.paired_difference(TWO, ONE))
    assert moved.replace(formatting.MINUS, "-") == "-1.58 (-2.46 to -0.700, n = 10)"
    moved = formatting.difference(intervals.paired_difference([0, 1], [1, 1]))
    assert moved.startswith("+50 points (")
    assert [formatting.number(one) for one in (0, -0.0001, 12.34, 12345.6)] == [
        "0",
        "0",
        "12.3",
        "12,346",
    ]
