"""What the open pages of a server poll for: small reads by index, however large the journal."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.journal import Op, Row, Statement
from perdure.types import Kind

NEWEST = 50
"""Number of newest runs and questions read. More than these in one interval appear when a page is
opened next."""


class Glance(NamedTuple):
    """What one poll saw."""

    versions: dict[str, Any]
    """A version of each followed run that differs once it has changed."""
    runs: dict[str, int]
    """The newest runs, newest first: the id of each, and when it was started."""
    questions: dict[str, int]
    """The newest open questions to people: the id of each, and when it was asked."""
    asking: dict[str, str]
    """The run of each of these questions."""


def glance(run_ids: Collection[str]) -> Op[Glance]:
    """Look at these runs, and at the newest runs and questions."""
    names = ("newest_runs", "newest_questions")
    statements = [Statement(name, {"count": NEWEST}) for name in names]
    if run_ids:
        names_json = json.dumps(sorted(run_ids))
        statements.append(Statement("versions_of_runs", {"names": names_json}))

    def result(rows: Sequence[Sequence[Row]]) -> Glance:
        runs, questions, *versions = rows
        found = {str(id): change for row in versions for id, change, _ in row}
        return Glance(
            found,
            {str(id): int(at) for id, at in runs},
            {str(id): int(at) for id, at, _ in questions},
            {str(id): str(run_id) for id, _, run_id in questions},
        )

    return Op("glance", statements, result)


def new_ids(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """What the later of two lists of the newest has and the earlier had not, oldest first. One that
    came into a full list because another left it is older than all that it had, and not new."""
    oldest = min(((at, id) for id, at in before.items()), default=(0, ""))
    is_full = len(before) >= NEWEST
    new = [id for id, at in now.items() if id not in before and not (is_full and (at, id) < oldest)]
    return new[::-1]


def count_questions(most: int) -> Op[int]:
    """The number of open questions to people, up to `most`."""
    return Op(
        "count_questions",
        [Statement("count_open_waits", {"kind": Kind.HUMAN.value, "most": most})],
        lambda rows: int(rows[0][0][1]),
    )
