"""What the open pages of a server poll for: small reads by index, however large the journal."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from perdure.journal import Op, Row, Statement

NEWEST = 50
"""Number of newest runs and questions read. More than these in one interval appear when a page is
opened next."""


class Glance(NamedTuple):
    """What one poll saw."""

    versions: dict[str, Any]
    """A version of each followed run that differs once it has changed."""
    runs: tuple[str, ...]
    """The newest runs."""
    questions: dict[str, str]
    """The newest open questions to people: the id of each, and its run's."""


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
        ids = tuple(str(id) for (id,) in runs)
        return Glance(found, ids, {str(id): str(run_id) for id, run_id in questions})

    return Op("glance", statements, result)


def count_questions(most: int) -> Op[int]:
    """The number of open questions to people, up to `most`."""
    return Op(
        "count_questions",
        [Statement("count_questions", {"most": most})],
        lambda rows: int(rows[0][0][0]),
    )
