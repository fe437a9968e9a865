"""The errors that perdure raises.

Each has its facts as attributes; its message says what happened, to which id, and what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the known name that is nearest to a misspelt one, or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def forgot_await(value: object) -> str:
    """A question to the caller that passed a coroutine instead of what it returns, or nothing."""
    return " Did you forget await?" if hasattr(value, "__await__") else ""


def needs_extra(what: str, extra: str) -> str:
    """What to install for an extra of perdure. It names the packages: they are in the index that
    the others came from, wherever perdure itself was installed from."""
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("perdure")
    except PackageNotFoundError:  # its folder is on the path
        return f"{what} needs the packages of the extra {extra!r} in perdure's pyproject.toml."
    packages = shlex.join(_packages_of(extra, found.requires or []))
    pip = "uv pip" if (found.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    return f"{what} needs more packages: {pip} install {packages}"


def _packages_of(extra: str, requires: list[str]) -> list[str]:
    found: list[str] = []
    for requirement in requires:
        package, _, marker = requirement.partition(";")
        if f"extra == {extra!r}" not in marker.replace('"', "'"):
            continue
        if package.startswith("perdure["):
            for other in package.strip().removeprefix("perdure[").rstrip("]").split(","):
                found += _packages_of(other, requires)
        else:
            found.append(package.strip())
    return found


class Error(Exception):
    """Base of the errors that perdure raises."""


class BadURL(Error):
    """The database URL, or the database it names, cannot be used."""


class SchemaTooNew(Error):
    """The database was migrated by a newer perdure than this one."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"The journal has schema version {found}, and this perdure knows up to {known}. "
            "Upgrade perdure in this process; nothing was read or written."
        )
        self.found, self.known = found, known


class Unavailable(Error):
    """The database could not be reached, or did not answer before its deadline.

    Calling again is safe. Nothing of the operation is in the journal, unless the message says that
    the outcome of a commit is unknown.
    """


class Unsupported(Error):
    """The journal's database cannot do this (`Journal.capabilities`); nothing was written."""

    def __init__(self, operation: str, need: str, limit: int | None) -> None:
        bound = "has none" if limit is None else f"takes at most {limit:,}"
        super().__init__(
            f"{operation} needs {need}; the database of this journal {bound}. Nothing was written. "
            "Do less at once, or use a journal on SQLite or PostgreSQL."
        )
        self.operation, self.need, self.limit = operation, need, limit


class StatementFailed(Error):
    """A statement of a transactional effect failed on a database that only takes batches (D1).

    It is raised after the function has returned, when its statements are committed together.
    """

    def __init__(self, effect: str, reason: str) -> None:
        super().__init__(
            f"The statements of {effect} were sent and failed: {reason}. Nothing of it was written."
        )
        self.effect, self.reason = effect, reason


class Closed(Error):
    """The journal or saver was used after `close()`."""


class WriteLost(Error):
    """An operation that was queued and not waited for could not be stored.

    Raised at the next call. It was queued by `durability="auto"`, `"async"` or `"exit"`, and the
    database refused it.
    """


class Unserializable(Error):
    """A value cannot be stored. It was refused before anything was acknowledged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be stored: {reason}")
        self.path, self.reason = path, reason


class TypeNotAllowed(Error):
    """A value to be stored or loaded has a type that is not on the allowlist."""

    def __init__(self, module: str, name: str, where: str) -> None:
        super().__init__(
            f"{where}: the type {module}.{name} is not allowed. If it is yours, pass it: "
            f"Runtime(..., allow=[{name}]), or Saver(..., allow=[{name}]) without a runtime. "
            "(A model, dataclass or enum in the graph's state schema is allowed automatically, if "
            "perdure.Saver was imported before it was compiled.)"
        )
        self.module, self.name, self.where = module, name, where


class TooLarge(Error):
    """A value is over a size limit. It was refused before anything was acknowledged.

    The limit is the saver's `max_bytes`, or what the journal's database takes. `largest` is the
    largest part of the value, such as a channel, and its size.
    """

    def __init__(
        self,
        where: str,
        size: int,
        limit: int,
        *,
        largest: tuple[str, int] | None = None,
        in_database: bool = False,
    ) -> None:
        part = "" if largest is None else f" ({largest[1]:,} of them for {largest[0]})"
        whose = " of this journal's database" if in_database else ""
        other = "use a journal on SQLite or PostgreSQL"
        super().__init__(
            f"{where}: {size:,} bytes{part} are over the limit of {limit:,}{whose}. Keep large "
            "data outside the state and store a reference, or "
            f"{other if in_database else 'raise Saver(..., max_bytes=...)'}."
        )
        self.where, self.size, self.limit, self.largest = where, size, limit, largest


class Damaged(Error):
    """A stored row cannot be read back as it was written. Other threads are not affected."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where} is damaged: {reason}. Other threads are not affected. Restore this one from "
            "a backup, continue from an older checkpoint, or delete the thread."
        )
        self.where, self.reason = where, reason


class WrongKey(Error):
    """A row is encrypted with a key this process does not have, or not encrypted at all."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} cannot be opened: {reason}")
        self.where, self.reason = where, reason


UNREADABLE = (Damaged, WrongKey, TypeNotAllowed)
"""Errors of a row that a person has to look at: a retry would raise them again."""


class LeaseLost(BaseException):
    """Another worker drives this run now. Nothing that this one still does is stored.

    Not an `Exception`, so that the agent's code does not catch it and go on.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id} is driven by another worker now, or was stopped; this one stores "
            "nothing more. No action is needed."
        )
        self.run_id = run_id


class BadArgument(Error, ValueError):
    """An argument is invalid; the message says what to pass instead."""


class AmbiguousAnswer(BadArgument, RuntimeError):
    """`Command(resume=…)` does not say which of the run's questions it answers.

    LangGraph raises a RuntimeError for it.
    """

    def __init__(self, run_id: str, interrupt_ids: list[str]) -> None:
        self.run_id, self.interrupt_ids = run_id, interrupt_ids
        open = ", ".join(interrupt_ids) or "none"
        super().__init__(
            "When there are multiple pending interrupts, you must specify the interrupt id when "
            f"resuming. Run {run_id} waits for {len(interrupt_ids)} answers: pass "
            f"Command(resume={{id: answer}}) with {open}."
        )


class UnknownGraph(Error):
    """No graph of that name is registered with this runtime."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"No graph {name!r} is registered here; there is {', '.join(known) or 'none'}."
            f"{did_you_mean(name, known)} Call Runtime.register(graph, name=...) first."
        )
        self.name, self.known = name, known


class UnknownReflector(BadArgument):
    """A reflection names a reflector that this process does not have."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"No reflector {name!r} is known here: {why}. Bring it back under this name and "
            "retry the reflection, or cancel it."
        )
        self.name = name


class ReflectionFailed(Error):
    """A reflection failed for good. It is held until a person retries or cancels it."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(
            f"Reflection {id} is held: {reason.rstrip('.')}. Correct the cause, then call "
            f"retry({id!r}) or cancel() of its executor, or use `perdure reflections`."
        )
        self.id, self.reason = id, reason


class ReflectionLeft(Error):
    """An executor was shut down before a reflection ended. The reflection is on disk, and the next
    executor of the same name goes on with it."""

    def __init__(self, id: str, executor: str) -> None:
        super().__init__(
            f"The executor {executor!r} was shut down before reflection {id} was over. Nothing is "
            "lost: the next executor of this name goes on with it."
        )
        self.id, self.executor = id, executor


class NotDurable(Error):
    """A graph, or a call of it, cannot be made durable."""


class NotFound(Error):
    """The journal has no such run, wait, schedule, effect, checkpoint, prompt, dataset, experiment,
    assistant or thread."""

    def __init__(self, what: str, id: str, service: str = "") -> None:
        is_kept = what in ("prompt", "dataset", "experiment", "assistant", "token", "worker")
        pruned = "" if is_kept else " It may have been pruned."
        super().__init__(f"There is no {what} {id!r} in {service or 'this journal'}.{pruned}")
        self.what, self.id, self.service = what, id, service


class AlreadyExists(Error):
    """There is an assistant or a thread with this id already. Nothing was changed."""

    def __init__(self, what: str, id: str) -> None:
        super().__init__(f"There is {what} {id!r} already. Choose another id, or change that one.")
        self.what, self.id = what, id


class ThreadBusy(Error):
    """A thread has a run under way, and the call does not wait for it."""

    def __init__(self, thread_id: str, why: str) -> None:
        super().__init__(
            f"Thread {thread_id!r} has a run that {why}. Wait for it, resume or retry it, cancel "
            "it, or start with another multitask_strategy."
        )
        self.thread_id = thread_id


class WrongState(Error):
    """The state of a run does not allow this. Nothing was changed."""

    def __init__(self, run_id: str, state: str, verb: str, why: str) -> None:
        super().__init__(f"Run {run_id} is {state} and cannot {verb}: {why}")
        self.run_id, self.state = run_id, state


class GraphChanged(Error):
    """The code of a graph changed, and lost the place from which a run was to go on."""

    def __init__(self, run_id: str, reason: str, lost: Sequence[str]) -> None:
        super().__init__(f"Run {run_id} cannot be forked where it is: {reason}.")
        self.run_id, self.reason, self.lost = run_id, reason, tuple(lost)


class AnswerRefused(Error):
    """An answer was not accepted. Nothing was changed."""

    def __init__(self, wait_id: str, why: str) -> None:
        super().__init__(f"Wait {wait_id} does not accept this answer: {why}")
        self.wait_id = wait_id


class AlreadyAnswered(AnswerRefused):
    """The wait has been answered."""


class WaitExpired(AnswerRefused):
    """The answer came after `expires`."""


class WaitClosed(AnswerRefused):
    """The run ended, or asks something else now."""


class WrongWait(AnswerRefused):
    """The wait is for the clock, a signal or other runs, not for a person."""


class BadAnswer(AnswerRefused):
    """The answer does not fit the question's `response_schema` or dialect."""


class LinkRefused(Error):
    """A signed link to a question cannot be used. Nothing was changed."""


class InvalidLink(LinkRefused):
    """The signature of a link is wrong. The error does not name a question."""

    def __init__(self) -> None:
        super().__init__(
            "This link is not valid. It may be incomplete: copy all of it from the message. A "
            "link works only on servers that share the journal it was made with."
        )


class LinkExpired(LinkRefused):
    """A link was used too late."""

    def __init__(self, wait_id: str, when: str) -> None:
        super().__init__(
            f"This link to wait {wait_id} expired at {when}. Ask for a new one, or sign in and "
            "answer in the inbox."
        )
        self.wait_id = wait_id


class LinkSpent(LinkRefused):
    """The question of a link was answered before, and the answer was withdrawn."""

    def __init__(self, wait_id: str) -> None:
        super().__init__(
            f"This link to wait {wait_id} is spent: the question was answered, and the answer was "
            "withdrawn. Ask for a new link, or sign in and answer in the inbox."
        )
        self.wait_id = wait_id


class AlreadyAssigned(Error):
    """The question is assigned to someone else. Nothing was changed."""

    def __init__(self, wait_id: str, assignee: str) -> None:
        super().__init__(
            f"Wait {wait_id} is assigned to {assignee}; pass expected={assignee!r} to take it over."
        )
        self.wait_id, self.assignee = wait_id, assignee


class NotWithdrawn(Error):
    """An answer cannot be withdrawn. Nothing was changed."""

    def __init__(self, wait_id: str, why: str) -> None:
        super().__init__(f"The answer to wait {wait_id} cannot be withdrawn: {why}")
        self.wait_id = wait_id


class Expired(Error):
    """Inside an agent: an `ask`, or a `join`, without a default expired."""


class TakenBack(Error):
    """Inside an agent: a signal withdrew an `ask` without a default. `value` is the signal's."""

    def __init__(self, name: str, value: object = None) -> None:
        super().__init__(
            f"The signal {name!r} withdrew the question. Give ask() a default=, or catch this."
        )
        self.name, self.value = name, value


class JoinFailed(Error):
    """Inside an agent: a run that `join` waited for is not done.

    `state` is `failed`, `cancelled`, or empty if the journal has no such run.
    """

    def __init__(self, run_id: str, state: str, why: str | None = None) -> None:
        ends = {"failed": "failed", "cancelled": "was cancelled"}
        happened = ends.get(state, "is not in this journal")
        why_not = why or ("" if state else "it was started in another one, or was deleted")
        advice = "retry that run and then this one" if state else "join a run of this journal"
        reason = f": {why_not.removesuffix('.')}" if why_not else ""
        super().__init__(
            f"Run {run_id}, which was joined, {happened}{reason}. Catch this, or {advice}."
        )
        self.run_id, self.state, self.why = run_id, state, why


class NotInRun(Error):
    """A function for the nodes of a graph was called elsewhere."""


class StepTimeout(Error):
    """A step made no progress within the timeout of its graph."""


class NotDone(Error):
    """Raise this in an effect that knows that nothing happened on the far side.

    Its outcome is then known: it is retried, also with `unknown="hold"`.
    """


class EffectFailed(Error):
    """An effect failed for good, with an exception that cannot be restored from its record."""

    def __init__(self, key: str, kind: str, message: str) -> None:
        super().__init__(f"Effect {key} failed: {kind}: {message}")
        self.key, self.kind, self.message = key, kind, message


class EffectTimeout(Error, TimeoutError):
    """An effect took longer than its `timeout`. It may or may not have happened."""

    def __init__(self, key: str, seconds: float) -> None:
        super().__init__(f"Effect {key} did not return within {seconds:g} s.")
        self.key, self.seconds = key, seconds


class EffectHeld(BaseException):
    """The outcome of an effect is unknown, and its policy is to ask a person.

    The run is held until `Runtime.settle`. Not an `Exception`, so that the agent's code does not
    catch it and go on.
    """

    def __init__(self, key: str, name: str, why: str) -> None:
        super().__init__(
            f"The outcome of the effect {name!r} is unknown ({why}). Find out, then settle it: "
            f"Runtime.settle({key!r}, 'done', result), 'retry' or 'fail'; or perdure settle."
        )
        self.key, self.effect, self.why = key, name, why


class WaitCaught(BaseException):
    """A node caught the exception by which `ask`, `sleep`, `wait_for`, `join` or `interrupt` waits.

    The question is stored, and the node runs again with its answer. Nothing after it is stored.
    """

    def __init__(self, node: str) -> None:
        super().__init__(
            f"The node {node!r} caught the exception by which ask(), sleep(), wait_for(), "
            "join() or interrupt() waits, and went on. The question is stored, and what came after "
            "it is not. Catch narrower exceptions there, or re-raise "
            "langgraph.errors.GraphBubbleUp."
        )
        self.node = node


class Postponed(BaseException):
    """An effect is retried later; until then its run waits without a process.

    Not an `Exception`, so that the agent's code does not catch it and go on.
    """

    def __init__(self, key: str, name: str, until: int, attempt: int) -> None:
        super().__init__(f"The effect {name!r} is retried later.")
        self.key, self.effect, self.until, self.attempt = key, name, until, attempt


class OrderChanged(BaseException):
    """A node makes its calls in another order than before, and has to run again.

    A worker does so by itself. With only the saver, invoke the graph again. Not an `Exception`, so
    that the agent's code does not catch it and go on.
    """

    def __init__(self, key: str, name: str) -> None:
        super().__init__(
            f"The node calls the effect {name!r} in another order than before: an earlier call got "
            f"the outcome of {key}. The node has to run again; then each call gets its own. A "
            "worker does that by itself; with only the saver, invoke the graph again with None."
        )
        self.key, self.effect = key, name


class NotSettled(Error):
    """An effect cannot be settled by a person now. Nothing was changed."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"Effect {key} cannot be settled: {why}")
        self.key = key


class EffectRefused(BaseException):
    """An effect was called in an evaluation that does not simulate it.

    It was not called, and the run fails. Not an `Exception`, so that the agent's code does not
    catch it and go on.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"The effect {name!r} was not called: {why}. Simulate it with "
            f"evaluate(..., effects={{{name!r}: value_or_function}})."
        )
        self.effect, self.why = name, why


class Unanswered(Error):
    """A run of an evaluation waits for something that its example does not have. The run fails."""

    def __init__(self, run_id: str, what: str, hint: str) -> None:
        super().__init__(f"Run {run_id} of an evaluation {what}. {hint}")
        self.run_id = run_id


class ExperimentChanged(Error):
    """An experiment of this name has other settings. Nothing was changed or started."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"Experiment {name!r} was begun with {what}. Its results could not be compared with "
            "each other: use another experiment name, or the settings it was begun with."
        )
        self.experiment = name
