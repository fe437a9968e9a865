"""Operations on prompt versions: their texts, what read them, and its scores. Pure, no I/O.

The statements that store a use go into the batch of what used it: a step, an effect's outcome, a
question. A crash leaves both or neither, and a node that runs again reads its prompts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from perdure.errors import UNREADABLE
from perdure.journal import Op, Row, Statement, read_op
from perdure.operations import stored_rows
from perdure.operations.effects import Owner
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.types import Prompt, PromptVersion

RUN, STEP, EFFECT, QUESTION = "", "step", "effect", "question"
"""What can have read a prompt: the targets of `perdure_prompt_uses`, and of scores."""


class PromptRow(NamedTuple):
    """A prompt version as it is stored, and how many runs read it."""

    name: str
    version: str
    first_at: int
    body: bytes
    runs: int


class OutcomeRow(NamedTuple):
    """The scores of one name, and of one category, of what a prompt version touched."""

    prompt: str
    version: str
    score: str
    kind: str
    label: str | None
    n: int
    total: float
    squares: float
    hits: int
    """How many of the numbers are 0 or 1."""


def insert(serializer: Serializer, prompt: Prompt, now: int) -> Statement:
    """Stores the text of a version, unless it is there."""
    place = places.of_prompt(prompt.name, prompt.version)
    body = serializer.dumps(str(prompt), place, f"prompt {prompt.name!r}")
    params = {"name": prompt.name, "version": prompt.version, "now": now, "body": body}
    return Statement("insert_prompt", params)


def uses(
    owner: Owner, target: str, target_id: str, prompts: Iterable[PromptVersion]
) -> list[Statement]:
    """Statements that store what a step, effect, question or run has read, for its batch."""
    place = {"thread_id": owner.thread_id, "id": owner.run_id}
    place |= {"target": target, "target_id": target_id}
    return [
        Statement("insert_prompt_use", {**place, "prompt": one.name, "version": one.version})
        for one in prompts
    ]


def read_by(thread_id: str, run_id: str, target: str, target_id: str) -> Op[list[PromptVersion]]:
    """The versions that a run, or one of its steps, effects or questions, has read so far."""
    params = {"thread_id": thread_id, "id": run_id, "target": target, "target_id": target_id}
    return read_op("prompts_read_by", params, _versions)


def _versions(rows: Sequence[Sequence[Row]]) -> list[PromptVersion]:
    return [PromptVersion(*row) for row in rows[0]]


def page(name: str | None) -> Op[tuple[list[PromptRow], list[OutcomeRow]]]:
    """Every version of a prompt, or of all, oldest first, and the scores of what they touched."""
    first, last = ("", "\U0010ffff") if name is None else (name, name)
    params: dict[str, Any] = {"first": first, "last": last}
    return Op(
        "prompts",
        [Statement("prompt_versions", params), Statement("prompt_outcomes", params)],
        lambda rows: (
            stored_rows.every(PromptRow, rows),
            [OutcomeRow(*row) for row in rows[1]],
        ),
    )


def texts(after: str, count: int) -> Op[list[PromptRow]]:
    """The versions of the prompts behind a name, without how many runs read them."""
    params = {"after": after, "count": count}
    return read_op("prompt_texts", params, lambda rows: stored_rows.every(PromptRow, rows))


def load_text(serializer: Serializer, row: PromptRow) -> tuple[str, str | None]:
    """The text of a version, and why it cannot be read."""
    try:
        place = places.of_prompt(row.name, row.version)
        text: str = serializer.loads(row.body, place, str)
    except UNREADABLE as error:
        return "", str(error)
    return text, None
