"""Means, shares and differences with their confidence intervals.

Pure, and without a numerical library. Each method was chosen because it stays honest with the few
observations that agents give:

    share               Wilson's score interval: never outside 0 to 1, and wide for 5 of 5
    mean                Student's t
    paired_difference   of the same examples twice: Newcombe's paired interval for shares, t else

Observations that are only 0 and 1 (or booleans) are a share; anything else is a mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

LEVEL = 0.95
"""Confidence of every interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % confidence interval."""

    value: float
    """The mean, share or difference."""
    low: float | None
    """The lower end of the interval. `None`, as `high` is, for a single observation."""
    high: float | None
    """The upper end of the interval."""
    n: int
    """How many observations; for a difference of pairs, how many pairs."""
    share: bool = False
    """Whether it is a share, or a difference of two shares."""

    @property
    def apart_from_zero(self) -> bool:
        """Whether the interval excludes zero: a difference that is more than chance."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def estimate(values: Iterable[float]) -> Estimate | None:
    """The share or mean of some observations; None without any."""
    observed = _floats(values)
    if not observed:
        return None
    return share(round(sum(observed)), len(observed)) if _are_hits(observed) else mean(observed)


def share(hits: int, n: int) -> Estimate:
    """The share of hits among n trials."""
    if not 0 <= hits <= n or n < 1:
        raise ValueError(f"{hits} of {n} is not a share.")
    low, high = _wilson(hits / n, n)
    return Estimate(hits / n, low, high, n, share=True)


def mean(values: Iterable[float]) -> Estimate:
    """The mean of at least one observation."""
    observed = _floats(values)
    if not observed:
        raise ValueError("A mean needs at least one value.")
    middle, n = fmean(observed), len(observed)
    if n == 1:
        return Estimate(middle, None, None, 1)
    reach = t_quantile((1 + LEVEL) / 2, n - 1) * stdev(observed) / math.sqrt(n)
    return Estimate(middle, middle - reach, middle + reach, n)


def paired_difference(before: Iterable[float], after: Iterable[float]) -> Estimate | None:
    """How much higher the second value of each pair is, on average; None without pairs."""
    first, second = _floats(before), _floats(after)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values cannot be paired with {len(second)}.")
    if not first:
        return None
    if not (_are_hits(first) and _are_hits(second)):
        return mean([b - a for a, b in zip(first, second, strict=True)])
    n, p, q = len(first), fmean(first), fmean(second)
    phi = _correlation(first, second)
    # Newcombe's interval: both Wilson intervals, "square and add"
    (p_low, p_high), (q_low, q_high) = _wilson(p, n), _wilson(q, n)
    below, above = _combined(q - q_low, p_high - p, phi), _combined(q_high - q, p - p_low, phi)
    moved = q - p
    return Estimate(moved, max(-1.0, moved - below), min(1.0, moved + above), n, share=True)


def _combined(one: float, two: float, phi: float) -> float:
    return math.sqrt(max(0.0, one**2 - 2 * phi * one * two + two**2))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Phi of pairs of hits, with Newcombe's correction (his method 10)."""
    n = len(first)
    both = sum(a * b for a, b in zip(first, second, strict=True))
    only_first, only_second = sum(first) - both, sum(second) - both
    neither = n - both - only_first - only_second
    margins = sum(first) * (n - sum(first)) * sum(second) * (n - sum(second))
    if margins == 0:
        return 0.0
    product = both * neither - only_first * only_second
    if product > 0:
        product = max(0.0, product - n / 2)
    return product / math.sqrt(margins)


def _wilson(p: float, n: int) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At 0 and 1 rounding would leave the interval just beside the share it belongs to.
    return (0.0 if p == 0 else middle - reach), (1.0 if p == 1 else middle + reach)


def _floats(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values]


def _are_hits(values: Iterable[float]) -> bool:
    """Whether observations are only 0 and 1, so that their mean is a share."""
    return all(value in (0.0, 1.0) for value in values)


def t_quantile(p: float, freedom: float) -> float:
    """The value that Student's t stays below with probability p."""
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while _t_below(high, freedom) < p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _t_below(t: float, freedom: float) -> float:
    """P(T <= t), for t >= 0."""
    return 1 - _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x in (0.0, 1.0):
        return x
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta)
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return front * _beta_fraction(x, a, b) / a
    return 1 - front * _beta_fraction(1 - x, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
