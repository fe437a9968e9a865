"""Examples from real runs: what came in, and what a person approved.

An approval says that what was shown was right; an edit says what it should have been. Both make an
example: its input is the run's, its expected output what was approved. A rejection says only that
the answer was wrong, so it makes none. When the example is evaluated, the question is answered with
an approval, so that evaluators judge what the target itself wrote. If no such answer fits the
question, the example has no answers, and its evaluation says that it needs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from perdure.client import Client
from perdure.errors import BadAnswer
from perdure.operations.answer_decisions import TEXT_FIELDS, Verdict, decisions_in
from perdure.operations.answer_dialects import check_fits, dialect_of
from perdure.operations.answer_schema import as_json
from perdure.operations.waits import is_reserved
from perdure.types import Example, Kind, Run, State, WaitRecord, WaitState

Expected = Literal["answer", "output"]
APPROVING = {"edit": "approve", "edited": "approved"}
"""The word of a form that says the same without an edit."""


class Approval(NamedTuple):
    """What a person approved by an answer."""

    verdict: Verdict
    value: Any
    """What was shown, with the edits."""
    answer: Any
    """An answer that approves without edits; None if none is known."""


async def from_runs(
    client: Client, runs: Iterable[Run | str], *, expected: Expected = "answer"
) -> list[Example]:
    """Make examples from real runs, in their order.

    An approval says that what was shown was right; an edit says what it should have been. The
    question of such an example is answered with an approval when it is evaluated, so that
    evaluators judge what the target itself wrote. An example has the id of its run, so a repeated
    call replaces it.

        examples = await from_runs(client, await client.runs(graph="support"))

    Store them with `Dataset.create` or `Dataset.add`.

    Args:
        client: A `Client` or `Runtime` on the journal.
        runs: The runs, or their ids.
        expected: Where the expected output comes from. `answer`: what a person approved last in the
            run, as shown or as edited; runs without such a decision are left out. `output`: what
            the run returned; runs that are not done are left out.

    Raises:
        NotFound: The journal has no such run.
    """
    found = []
    for one in runs:
        run = await client.get(one) if isinstance(one, str) else one
        example = await _example(client, run, expected)
        if example is not None:
            found.append(example)
    return found


async def _example(client: Client, run: Run, expected: Expected) -> Example | None:
    given = await client.journal.arun(client.services.runs.input(run.id))
    waits = [one for one in await client.wait_history(run.id) if _is_answered(one)]
    people = [one for one in waits if one.kind is Kind.HUMAN]
    signals = {str(one.name): one.answer for one in waits if one.kind is Kind.SIGNAL}
    metadata = {"graph": run.graph, "run": run.id}
    answers = tuple(one.answer for one in people)
    if expected == "output":
        if run.state is not State.DONE:
            return None
        return Example(given, run.output, run.id, metadata, answers, signals, run.id)
    approvals = [approval_in(one) for one in people]
    last = next((one for one in reversed(approvals) if one is not None), None)
    if last is None:
        return None
    approving = tuple(
        answer if approval is None else approval.answer
        for answer, approval in zip(answers, approvals, strict=True)
    )
    approving = () if None in approving else approving
    metadata["decision"] = str(last.verdict)
    return Example(given, last.value, run.id, metadata, approving, signals, run.id)


def _is_answered(wait: WaitRecord) -> bool:
    """Whether it was answered; not whether it expired or was withdrawn."""
    if wait.state in (WaitState.OPEN, WaitState.CLOSED) or wait.damaged:
        return False
    return not is_reserved(wait.answer)


def approval_in(wait: WaitRecord) -> Approval | None:
    """What the answer to a question approved; None if it did not approve all that was asked."""
    made = decisions_in(wait.value, wait.answer)
    verdicts = {one.label for one in made}
    if not made or not verdicts <= {Verdict.APPROVED, Verdict.EDITED}:
        return None
    verdict = Verdict.EDITED if Verdict.EDITED in verdicts else Verdict.APPROVED
    value, answer, dialect = wait.value, as_json(wait.answer), dialect_of(wait.value)
    if dialect is not None:
        decisions = answer[dialect.field] if dialect.field else answer
        decisions = [decisions] if isinstance(decisions, Mapping) else decisions
        values = [_call(*pair) for pair in zip(_actions(value), decisions, strict=True)]
        one: Any = {"type": "approve"} if dialect.field else {"type": "accept", "args": None}
        approving: Any = [one] * len(values)
        approving = {dialect.field: approving} if dialect.field else approving
        approved = values[0] if len(values) == 1 else values
    elif isinstance(value, Mapping) and value.get("type") == "tool_approval":
        approved, approving = _call(value, answer), {"type": "approve"}
    else:
        approved, approving = _form(value, answer), _without_edits(value, answer)
    if verdict is Verdict.APPROVED:
        approving = wait.answer
    return Approval(verdict, approved, approving if _fits(wait, approving) else None)


def _fits(wait: WaitRecord, answer: Any) -> bool:
    try:
        check_fits(wait.id, wait.value, wait.response_schema, answer)
    except BadAnswer:
        return False
    return True


def _actions(value: Any) -> Iterator[Mapping[str, Any]]:
    """The actions that a question of a dialect asks about."""
    if isinstance(value, Mapping) and "action_requests" in value:
        yield from value["action_requests"]
    else:
        for item in [value] if isinstance(value, Mapping) else value:
            yield item["action_request"]


def _call(action: Mapping[str, Any], decision: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call with the edits of its decision."""
    name, args = action.get("name", action.get("action")), action.get("args")
    edited = decision.get("edited_action", decision.get("args"))
    if isinstance(edited, Mapping):
        name = edited.get("name", edited.get("action", name))
        args = edited["args"] if isinstance(edited.get("args"), Mapping) else edited
    return {"name": name, "args": args}


def _form(value: Any, answer: Any) -> Any:
    """What a form showed, with the texts that the answer has in their place. A single text is that
    text."""
    fields = dict(value) if isinstance(value, Mapping) else {"": value}
    given = answer if isinstance(answer, Mapping) else {}
    texts = [name for name, one in fields.items() if isinstance(one, str)]
    for name in texts:
        if isinstance(given.get(name), str):
            fields[name] = given[name]
    edits = [name for name in TEXT_FIELDS if isinstance(given.get(name), str)]
    if len(texts) == 1 and len(edits) == 1 and texts[0] not in given:
        fields[texts[0]] = given[edits[0]]
    return fields[texts[0]] if len(fields) == 1 and texts else fields


def _without_edits(value: Any, answer: Any) -> Any:
    """The answer of a form as an approval of what is shown."""
    if not isinstance(answer, Mapping):
        return answer
    shown = value if isinstance(value, Mapping) else {}
    edited = {name for name in answer if name in TEXT_FIELDS or isinstance(shown.get(name), str)}
    return {
        name: APPROVING.get(one, one) if isinstance(one, str) else one
        for name, one in answer.items()
        if name not in edited
    }
