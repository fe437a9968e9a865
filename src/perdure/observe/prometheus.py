"""Metrics as Prometheus reads them: the text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perdure.observe.registry import Distribution, Family, Histogram, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(families: Iterable[Family]) -> str:
    """The text of these families."""
    return "".join(f"{line}\n" for family in families for line in _family(family))


def _family(family: Family) -> Iterator[str]:
    name, help, labels, _ = family.description
    yield f"# HELP {name} {_escaped(help)}"
    yield f"# TYPE {name} {family.kind}"
    if isinstance(family, Histogram):
        for values, found in list(family.series.items()):
            yield from _distribution(name, labels, values, found)
    else:
        for values, number in list(family.series.items()):
            yield f"{name}{_labels(labels, values)} {_number(number)}"


def _distribution(name: str, labels: Labels, values: Labels, found: Distribution) -> Iterator[str]:
    counts, total = list(found.counts), 0
    bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        yield f"{name}_bucket{_labels((*labels, 'le'), (*values, bound))} {total}"
    yield f"{name}_sum{_labels(labels, values)} {_number(found.sum)}"
    yield f"{name}_count{_labels(labels, values)} {total}"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_quoted(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
