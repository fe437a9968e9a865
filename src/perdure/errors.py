"""The errors that perdure raises.

Each has its facts as attributes; its message says what happened, to which id, and what to do next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime


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
    """Base of the errors that perdure raises.

    Raised when a feature needs a package that is not installed. All other causes have a subclass.

    What to do: Catch it to handle all of perdure's errors the same way. Its message says what
    happened, to which id, and what to do next.
    """


class BadURL(Error):
    """The URL of the journal, or the database it names, cannot be used.

    Raised when a journal is opened: no URL is given and `PERDURE_URL` is not set, the scheme is
    unknown, the folder is missing or on a network file system, the file is not writable or not a
    database, SQLite or PostgreSQL is too old, the server is set to read-only, the password or the
    secret is wrong, or a driver is not installed.

    What to do: Fix the problem that the message describes. Nothing was written.
    """


class SchemaTooNew(Error):
    """A newer perdure has migrated the database.

    Raised when a journal is opened whose schema version this perdure does not know. Nothing was
    read or written.

    What to do: Upgrade perdure in this process.

    Attributes:
        found (int): Schema version of the journal.
        known (int): Newest schema version that this perdure knows.
    """

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"The journal has schema version {found}, but this version of perdure knows {known} at "
            "most. Upgrade perdure in this process; nothing was read or written."
        )
        self.found, self.known = found, known


class Unavailable(Error):
    """The database could not be reached, or did not answer before its deadline.

    Raised when a call needs the database and gets no answer, or one that a later call may not get:
    the server is a standby, out of connections or disk, or its tables or a permission are gone.
    Workers handle it themselves: they wait and continue, also when they start.

    What to do: Call again; that is safe. No part of the operation is in the journal, unless the
    message says that the outcome of a commit is unknown.
    """


@dataclass(frozen=True, slots=True)
class Loss:
    """An acknowledged change that the database no longer has: it went back in time.

    `Client.doctor` lists those of the last 30 days.

    Attributes:
        thread_id: The thread. Empty if the change was of none.
        run_id: The run, if it was a change of one.
        what: `the run`, `its last changes`, or the name of the operation.
        acknowledged_at: When it was acknowledged last.
        noticed_at: When a process noticed that it is missing. None: just now.
    """

    thread_id: str
    run_id: str | None
    what: str
    acknowledged_at: datetime
    noticed_at: datetime | None = None

    def __str__(self) -> str:
        run = f"run {self.run_id} of " if self.run_id else ""
        at = self.acknowledged_at.isoformat(timespec="milliseconds")
        return f"{self.what} ({run}thread {self.thread_id!r}, acknowledged at {at})"


class WentBack(Unavailable):
    """The database went back in time: it lacks changes that were acknowledged to this process.

    Raised by the calls that notice it: after an asynchronous standby was promoted, when an old
    primary is reached, or a backup was restored. Everything that was queued in this process is
    refused, and the runs that it drove are dropped; workers claim them again as the database has
    them. Each loss is logged, and `perdure doctor` lists it.

    What to do: Call again, if what you asked for is still wanted. Look at the losses: repeat what
    was lost, and check the far side of effects that may have been called twice. Use synchronous
    replication.

    Attributes:
        why (str): What gave reason to look.
        losses (tuple[Loss, ...]): What is missing, oldest first.
    """

    def __init__(self, why: str, losses: tuple[Loss, ...]) -> None:
        lacks = (
            f"It lacks {len(losses)} acknowledged changes, which `perdure doctor` lists."
            if losses
            else "Nothing is missing that this process remembers."
        )
        super().__init__(
            f"The database went back in time: {why}. {lacks} This call was not made; call again."
        )
        self.why, self.losses = why, losses


class Unsupported(Error):
    """An operation exceeds a limit of the journal's database.

    Raised when an operation has more statements, parameters or bytes than the database takes at
    once (`Journal.capabilities`), for instance on D1. Nothing was written.

    What to do: Do less at once, or use a journal on SQLite or PostgreSQL.

    Attributes:
        operation (str): The operation that was refused.
        need (str): What it needs.
        limit (int | None): The limit. None if the database lacks the feature.
    """

    def __init__(self, operation: str, need: str, limit: int | None) -> None:
        bound = "has none" if limit is None else f"takes at most {limit:,}"
        super().__init__(
            f"{operation} needs {need}; the database of this journal {bound}. Nothing was written. "
            "Do less at once, or use a journal on SQLite or PostgreSQL."
        )
        self.operation, self.need, self.limit = operation, need, limit


class StatementFailed(Error):
    """D1 refused a statement of a transactional effect.

    Raised when the statements of the effect are committed together, after its function has
    returned. None of it was written. On SQLite and PostgreSQL the function itself gets the
    database's exception.

    What to do: Fix the statement, or catch this in the node that called the effect. The
    effect's `retry` applies to it.

    Attributes:
        effect (str): Name of the effect.
        reason (str): The database's message.
    """

    def __init__(self, effect: str, reason: str) -> None:
        super().__init__(
            f"The statements of {effect} were sent and failed: {reason}. None of it was written."
        )
        self.effect, self.reason = effect, reason


class Closed(Error):
    """A journal, saver, runtime or executor was used after it was closed.

    Raised when any method is called after `close()` or after its `with` block.

    What to do: Keep it open longer. A runtime is opened again by `setup()` or another `with`
    block; otherwise make a new one.
    """


class WriteLost(Error):
    """The database refused a write that its caller did not wait for.

    Raised when the saver is called next, after a checkpoint that was queued by `durability="auto"`,
    `"async"` or `"exit"` could not be stored.

    What to do: Read the reason in the message, fix the cause, and invoke the graph again: it
    continues from the last stored checkpoint.
    """


class Unserializable(Error):
    """A value cannot be stored.

    Raised when an input, state, answer, signal, argument or result holds something that is not
    data: a function, a lock, an iterator, an integer over 64 bits, a structure that contains
    itself. Nothing was acknowledged.

    What to do: Convert the value at `path` into plain data, or keep it out of the state.

    Attributes:
        path (str): Where the value is.
        reason (str): Why it cannot be stored.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be stored: {reason}")
        self.path, self.reason = path, reason


class TypeNotAllowed(Error):
    """A value has a type that is not on the allowlist.

    Raised when such a value is to be stored, or is found in a row. Loading a row never runs code,
    so only known types are loaded.

    What to do: If the type is yours, name it in the schema of the graph's state, or pass it:
    `Runtime(allow=[…])`, `Client(allow=[…])`, or `Saver(allow=[…])`.

    Attributes:
        module (str): Module of the type.
        name (str): Name of the type.
        where (str): Where the value is.
    """

    def __init__(self, module: str, name: str, where: str) -> None:
        super().__init__(
            f"{where}: the type {module}.{name} is not allowed. If it is yours, pass it: "
            f"Runtime(..., allow=[{name}]), or Saver(..., allow=[{name}]) without a runtime. "
            "(A model, dataclass or enum in the graph's state schema is allowed automatically, if "
            "perdure.Saver was imported before it was compiled.)"
        )
        self.module, self.name, self.where = module, name, where


class TooLarge(Error):
    """A value is over a size limit.

    Raised when a state, argument, result or another value has more bytes than `max_bytes`, or than
    the journal's database takes. Nothing was acknowledged.

    What to do: Keep large data outside of the state and store a reference, or raise `max_bytes`.

    Attributes:
        where (str): Where the value is.
        size (int): Its size in bytes.
        limit (int): The limit in bytes.
        largest (tuple[str, int] | None): The largest part of the value, such as a channel, and its
            size.
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
    """A stored row cannot be read back.

    Raised when the checksum of a row does not match, the row was changed, truncated or moved, or a
    class that it holds is gone. A run that needs it is `held`. Other threads are not affected.

    What to do: If a class is gone, bring it back and retry the run. Otherwise restore the thread
    from a backup, continue from an older checkpoint, or delete the thread.

    Attributes:
        where (str): The row.
        reason (str): What is wrong with it.
    """

    def __init__(self, where: str, reason: str, remedy: str | None = None) -> None:
        super().__init__(
            f"{where} is damaged: {reason}. Other threads are not affected. "
            + (
                remedy
                or "Restore this one from a backup, continue from an older checkpoint, or delete "
                "the thread."
            )
        )
        self.where, self.reason = where, reason


class WrongKey(Error):
    """A row cannot be decrypted.

    Raised when a row is encrypted with a key that this process does not have, or when this process
    has keys and the row is not encrypted. A run that needs it is `held`.

    What to do: Pass the same `encryption_keys` to every `Runtime`, `Client` and `Saver` of the
    journal, old keys included. From a shell, name the runtime: `--at agents:runtime`.

    Attributes:
        where (str): The row.
        reason (str): Which key is missing.
    """

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} cannot be opened: {reason}")
        self.where, self.reason = where, reason


UNREADABLE = (Damaged, WrongKey, TypeNotAllowed)
"""Errors of a row that a person has to look at: a retry would raise them again."""


class LeaseLost(BaseException):
    """Another worker drives this run now.

    Raised when a worker that lost its lease, or whose run was stopped, writes or calls an effect.
    The write is refused. It is a `BaseException`, so that `except Exception` in a node does not
    swallow it.

    What to do: Nothing. The other worker continues the run. Do not catch this in a node.

    Attributes:
        run_id (str): The run.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id} is driven by another worker now, or was stopped; this one stores "
            "nothing more. No action is needed."
        )
        self.run_id = run_id


class BadArgument(Error, ValueError):
    """An argument is invalid. Also a `ValueError`.

    Raised when a call makes no sense: an unknown option, a wrong type, a value out of range,
    arguments that exclude each other. Nothing was changed.

    What to do: Pass what the message asks for.
    """


class AmbiguousAnswer(BadArgument, RuntimeError):
    """`Command(resume=…)` does not say which question it answers.

    Raised when a run has several open questions, or when the command names one that is not open. It
    is also a `RuntimeError`, as in LangGraph.

    What to do: Pass `Command(resume={interrupt_id: answer})`.

    Attributes:
        run_id (str): The run.
        interrupt_ids (list[str]): Interrupt ids of its open questions.
    """

    def __init__(self, run_id: str, interrupt_ids: list[str]) -> None:
        self.run_id, self.interrupt_ids = run_id, interrupt_ids
        if not interrupt_ids:
            super().__init__(
                f"Run {run_id} has no open question: it is answered already. Call the graph with "
                "None, or run a worker, to continue it."
            )
            return
        super().__init__(
            "When there are multiple pending interrupts, you must specify the interrupt id when "
            f"resuming. Run {run_id} waits for {len(interrupt_ids)} answers: pass "
            f"Command(resume={{id: answer}}) with {', '.join(interrupt_ids)}."
        )


class UnknownGraph(Error):
    """No graph of that name, or of that version, is registered.

    Raised when a runtime is asked to start, fork or schedule a graph that it does not have. A
    `Client` has no graphs and takes any name.

    What to do: Correct the name, or call `Runtime.register(graph, name=…)` first.

    Attributes:
        name (str): The name.
        known (list[str]): The names that are registered.
    """

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"No graph {name!r} is registered here; there is {', '.join(known) or 'none'}."
            f"{did_you_mean(name, known)} Call Runtime.register(graph, name=...) first."
        )
        self.name, self.known = name, known


class UnknownReflector(BadArgument):
    """A reflection names a reflector that this process does not have.

    Raised when a worker drives the reflection. The reflection is `held`.

    What to do: Register the reflector under this name again and retry the reflection, or cancel it.

    Attributes:
        name (str): Name of the reflector.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"No reflector {name!r} is known here: {why}. Bring it back under this name and "
            "retry the reflection, or cancel it."
        )
        self.name = name


class ReflectionFailed(Error):
    """A reflection failed and is not retried.

    Raised when its result is awaited, after its last attempt. The reflection is `held`.

    What to do: Fix the cause, then call `retry(id)` or `cancel()` on its executor, or use
    `perdure reflections`.

    Attributes:
        id (str): Id of the reflection.
        reason (str): Why it failed.
    """

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(
            f"Reflection {id} is held: {reason.rstrip('.')}. Fix the cause, then call "
            f"retry({id!r}) or cancel() of its executor, or use `perdure reflections`."
        )
        self.id, self.reason = id, reason


class ReflectionLeft(Error):
    """An executor was shut down before a reflection ended.

    Raised when the result of that reflection is awaited.

    What to do: Nothing. The reflection is in the journal, and the next executor with the same name
    continues it.

    Attributes:
        id (str): Id of the reflection.
        executor (str): Name of the executor.
    """

    def __init__(self, id: str, executor: str) -> None:
        super().__init__(
            f"The executor {executor!r} was shut down before reflection {id} was over. Nothing is "
            "lost: the next executor of this name goes on with it."
        )
        self.id, self.executor = id, executor


class NotDurable(Error):
    """A graph, or a wait in it, cannot be made durable.

    Raised when a graph is registered that was compiled with another checkpointer, or when a node
    waits in a graph, or in a subgraph with `checkpointer=False`, where nothing would remember the
    wait.

    What to do: Compile the graph without a checkpointer and register it with a `Runtime`, or
    compile it with `checkpointer=perdure.Saver(…)`.
    """


class NotFound(Error):
    """The journal has no run, wait, effect, checkpoint or other record with that id.

    Raised when a method is given an id, a key or a name that does not exist, or when the run was
    pruned.

    What to do: Check the id, and that this is the right journal.

    Attributes:
        what (str): Kind of record: `run`, `wait`, `effect`, `checkpoint`, `schedule`, `prompt`,
            `dataset`, `assistant`, `thread`, `token`, `worker`, `message` …
        id (str): The id.
        service (str): Where it was looked for, if not in the journal.
        lost (Loss | None): What the database lost of it, if it went back in time.
    """

    def __init__(self, what: str, id: str, service: str = "", *, lost: Loss | None = None) -> None:
        is_kept = what in ("prompt", "dataset", "assistant", "token", "worker")
        why = "" if is_kept else " It may have been pruned."
        if lost is not None:
            why = f" The database went back in time and lost it: {lost}."
        super().__init__(f"There is no {what} {id!r} in {service or 'this journal'}.{why}")
        self.what, self.id, self.service, self.lost = what, id, service, lost


class AlreadyExists(Error):
    """An assistant or a thread with this id exists already.

    Raised when you create it again. Nothing was changed.

    What to do: Choose another id, or change the existing one.

    Attributes:
        what (str): `assistant` or `thread`.
        id (str): The id.
    """

    def __init__(self, what: str, id: str) -> None:
        super().__init__(f"There is {what} {id!r} already. Choose another id, or change that one.")
        self.what, self.id = what, id


class ThreadBusy(Error):
    """The thread has an unfinished run, and the call does not wait for it.

    Raised when a run is started with `multitask_strategy="reject"`, and when a bound graph is
    invoked or updated while its thread's run is paused, held, or driven elsewhere.

    What to do: Wait for that run, resume, retry or cancel it, or start with another
    `multitask_strategy`.

    Attributes:
        thread_id (str): The thread.
    """

    def __init__(self, thread_id: str, why: str) -> None:
        super().__init__(
            f"Thread {thread_id!r} has a run that {why}. Wait for it, resume or retry it, cancel "
            "it, or start with another multitask_strategy."
        )
        self.thread_id = thread_id


class WrongState(Error):
    """The state of a run does not allow the call.

    Raised when a run is, for instance, paused after its end, or woken while it is not asleep.
    Nothing was changed.

    What to do: Read the reason in the message; `get` shows the current state.

    Attributes:
        run_id (str): The run.
        state (str): Its state.
    """

    def __init__(self, run_id: str, state: str, verb: str, why: str) -> None:
        super().__init__(f"Run {run_id} is {state} and cannot {verb}: {why}")
        self.run_id, self.state = run_id, state


class GraphChanged(Error):
    """The graph no longer has the place from which a run was to be forked.

    Raised when `fork` is called without `as_node` and a node that the run is at was removed or
    renamed.

    What to do: Pass `register(renamed={…})` if a node has a new name, otherwise `as_node`, the
    node after which the fork continues.

    Attributes:
        run_id (str): The run.
        reason (str): What changed.
        lost (tuple[str, ...]): The nodes that are gone.
    """

    def __init__(self, run_id: str, reason: str, lost: Sequence[str]) -> None:
        super().__init__(f"Run {run_id} cannot be forked where it is: {reason}.")
        self.run_id, self.reason, self.lost = run_id, reason, tuple(lost)


class AnswerRefused(Error):
    """An answer was not accepted.

    Raised when one of its subclasses applies. Nothing was changed.

    What to do: Show the message to the person who answered.

    Attributes:
        wait_id (str): The wait.
    """

    def __init__(self, wait_id: str, why: str) -> None:
        super().__init__(f"Wait {wait_id} does not accept this answer: {why}")
        self.wait_id = wait_id


class AlreadyAnswered(AnswerRefused):
    """The question was answered before.

    Raised when a second answer comes. The message says who answered, and when.

    What to do: Show the person the first answer. `withdraw` takes it back, as long as the run has
    not used it yet. At an old checkpoint, where `wait_id` is the id of the interrupt, call
    `invoke(None, config)` to have it asked again on a branch.
    """


class WaitExpired(AnswerRefused):
    """The answer came too late.

    Raised when a question is answered after its `expires`. The run has continued without an answer.

    What to do: Start a new run if the answer still matters, or give questions more time.
    """


class WaitClosed(AnswerRefused):
    """The question is no longer open.

    Raised when its run has ended, asks something else now, or a signal withdrew the question.

    What to do: List `waits` again, and answer the question that is open now.
    """


class WrongWait(AnswerRefused):
    """The wait is not for a person.

    Raised when a wait for the clock, a signal or other runs is answered.

    What to do: Use `wake` for a sleep and `signal` for a signal. A wait for runs ends when they do.
    """


class BadAnswer(AnswerRefused):
    """The answer does not fit the question.

    Raised when it does not match the `response_schema`, or the format that
    `HumanInTheLoopMiddleware` or the Agent Inbox expects. The question stays open.

    What to do: Send an answer in the form that the message describes. `Wait.response_schema` has
    the schema.
    """


class LinkRefused(Error):
    """A signed link to a question cannot be used.

    Raised when one of its subclasses applies. Nothing was changed.

    What to do: Ask for a new link, or sign in and answer in the inbox.
    """


class InvalidLink(LinkRefused):
    """The signature of a link is wrong.

    Raised when the link is incomplete, was changed, or was made with another journal. The error
    does not name a question.

    What to do: Copy the whole link from the message, or ask for a new one.
    """

    def __init__(self) -> None:
        super().__init__(
            "This link is not valid. It may be incomplete: copy all of it from the message. A "
            "link works only on servers that share the journal it was made with."
        )


class LinkExpired(LinkRefused):
    """A link was used after its expiry.

    Raised when its page is opened too late.

    What to do: Ask for a new link, or sign in and answer in the inbox.

    Attributes:
        wait_id (str): The wait.
    """

    def __init__(self, wait_id: str, when: str) -> None:
        super().__init__(
            f"This link to wait {wait_id} expired at {when}. Ask for a new one, or sign in and "
            "answer in the inbox."
        )
        self.wait_id = wait_id


class LinkSpent(LinkRefused):
    """A link was made for an answer that has since been withdrawn.

    Raised when the question of the link was answered, and the answer was withdrawn.

    What to do: Ask for a new link, or sign in and answer in the inbox.

    Attributes:
        wait_id (str): The wait.
    """

    def __init__(self, wait_id: str) -> None:
        super().__init__(
            f"This link to wait {wait_id} is spent: the question was answered, and the answer was "
            "withdrawn. Ask for a new link, or sign in and answer in the inbox."
        )
        self.wait_id = wait_id


class AlreadyAssigned(Error):
    """The question is assigned to someone else.

    Raised when `assign` is called and the current assignee is neither `by` nor `expected`. Nothing
    was changed.

    What to do: Pass `expected=assignee` to take the question over.

    Attributes:
        wait_id (str): The wait.
        assignee (str): The current assignee.
    """

    def __init__(self, wait_id: str, assignee: str) -> None:
        super().__init__(
            f"Wait {wait_id} is assigned to {assignee}; pass expected={assignee!r} to take it over."
        )
        self.wait_id, self.assignee = wait_id, assignee


class NotWithdrawn(Error):
    """An answer cannot be withdrawn.

    Raised when its run is being driven or has already used the answer, or when the question
    was not answered. Nothing was changed.

    What to do: Try again after the segment, or fork the run from the checkpoint that the message
    names.

    Attributes:
        wait_id (str): The wait.
    """

    def __init__(self, wait_id: str, why: str) -> None:
        super().__init__(f"The answer to wait {wait_id} cannot be withdrawn: {why}")
        self.wait_id = wait_id


class Expired(Error):
    """A wait in this node reached its deadline and has no default.

    Raised inside a node when an `ask` was not answered before `expires`, or the runs of a `join`
    did not end before `timeout`.

    What to do: Pass `default=`, or catch this and take another path.
    """


class TakenBack(Error):
    """A signal withdrew the question of this node.

    Raised inside a node when the signal named in `ask(unless=…)` came first, and the question has
    no default.

    What to do: Pass `default=`, or catch this and take another path.

    Attributes:
        name (str): Name of the signal.
        value (object): Value of the signal.
    """

    def __init__(self, name: str, value: object = None) -> None:
        super().__init__(
            f"The signal {name!r} withdrew the question. Give ask() a default=, or catch this."
        )
        self.name, self.value = name, value


class JoinFailed(Error):
    """A run that this node waited for did not end `done`.

    Raised inside a node when a run given to `join` failed or was cancelled, or is not in this
    journal.

    What to do: Catch this, or retry that run and then this one.

    Attributes:
        run_id (str): The run.
        state (str): `failed` or `cancelled`. Empty if the journal has no such run.
        why (str | None): Why it failed or was cancelled.
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
    """A function for nodes or effects was called elsewhere.

    Raised when `sleep`, `ask`, `wait_for` or `join` is called outside of a graph, or `key`,
    `transaction` or `outbox` outside of an effect or a node.

    What to do: Call it where the message says. A thread that a node starts needs the context:
    `contextvars.copy_context().run`.
    """


class StepTimeout(Error):
    """A step made no progress within the `timeout` of its graph.

    Raised when a worker stops such a segment. It is the `error` of the run, and counts as one
    attempt.

    What to do: Find out what the step waits for, or register the graph with a longer `timeout`.
    """


class NotDone(Error):
    """Nothing happened on the far side.

    Raised by your own code, in an effect that knows that its call had no effect on the far side:
    the connection was refused, the request was rejected. The outcome is then known, so the call is
    retried, even with `unknown="hold"`.

    What to do: Raise it from your exception: `raise NotDone("…") from error`.
    """


class EffectFailed(Error):
    """An effect failed, and its exception cannot be restored from the record.

    Raised inside a node when a failed effect is called again and the class of its exception is not
    imported here or cannot be rebuilt, or when a person settled it as failed.

    What to do: Catch this in the node, retry the run, or settle the effect as `retry` or `done`.

    Attributes:
        key (str): Key of the effect.
        kind (str): Class of the exception, or the person who settled it.
        message (str): Its message.
    """

    def __init__(self, key: str, kind: str, message: str) -> None:
        super().__init__(f"Effect {key} failed: {kind}: {message}")
        self.key, self.kind, self.message = key, kind, message


class EffectTimeout(Error, TimeoutError):
    """An effect took longer than its `timeout`. Also a `TimeoutError`.

    Raised inside a node when one attempt exceeds the limit. It may or may not have happened, so
    `verify`, `unknown` and `retry` apply.

    What to do: Give the effect more time, or a `verify` that asks the far side.

    Attributes:
        key (str): Key of the effect.
        seconds (float): The limit.
    """

    def __init__(self, key: str, seconds: float) -> None:
        super().__init__(f"Effect {key} did not return within {seconds:g} s.")
        self.key, self.seconds = key, seconds


class EffectHeld(BaseException):
    """The outcome of an effect is unknown, and a person has to settle it.

    Raised inside a node when an effect with `unknown="hold"` was cut off or raised. The run is
    `held`. With only the saver it reaches the caller of `invoke`. It is a `BaseException`, so that
    `except Exception` in a node does not swallow it.

    What to do: Find out whether the call happened, then call `settle(key, "done", result)`,
    `"retry"` or `"fail"`, or use `perdure settle`. Do not catch this in a node.

    Attributes:
        key (str): Key of the effect.
        effect (str): Name of the effect.
        why (str): Why the outcome is unknown.
    """

    def __init__(self, key: str, name: str, why: str) -> None:
        super().__init__(
            f"The outcome of the effect {name!r} is unknown ({why}). Find out, then settle it: "
            f"Runtime.settle({key!r}, 'done', result), 'retry' or 'fail'; or perdure settle."
        )
        self.key, self.effect, self.why = key, name, why


class WaitCaught(BaseException):
    """A node caught the exception that makes it wait, and continued.

    Raised when the node ends, to the caller of a bound graph or of a graph with only the saver. The
    question is stored, the node runs again with the answer, and nothing it did after the wait is
    stored. Under a worker the run just waits, and a warning is logged.

    What to do: Catch narrower exceptions around `ask`, `sleep`, `wait_for`, `join` and `interrupt`,
    or re-raise `langgraph.errors.GraphBubbleUp`.

    Attributes:
        node (str): Name of the node.
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
    """An effect will be retried later; until then its run waits without a process.

    Raised inside a node when the pause before the next attempt is longer than five seconds. It is a
    `BaseException`, so that `except Exception` in a node does not swallow it.

    What to do: Nothing. The run continues automatically. Do not catch this in a node.

    Attributes:
        key (str): Key of the effect.
        effect (str): Name of the effect.
        until (int): When it is retried, in milliseconds since 1970.
        attempt (int): Number of the next attempt.
    """

    def __init__(self, key: str, name: str, until: int, attempt: int) -> None:
        super().__init__(f"The effect {name!r} is retried later.")
        self.key, self.effect, self.until, self.attempt = key, name, until, attempt


class OrderChanged(BaseException):
    """A node calls its effects in a different order than before, and has to run again.

    Raised inside a node when an effect call finds that an earlier call got its record. A worker
    runs the node again automatically. With only the saver, and from a bound graph, this reaches the
    caller of `invoke`. It is a `BaseException`, so that `except Exception` in a node does not
    swallow it.

    What to do: Under a worker, nothing. Otherwise call `invoke(None, config)` again.

    Attributes:
        key (str): Key of the record.
        effect (str): Name of the effect.
    """

    def __init__(self, key: str, name: str) -> None:
        super().__init__(
            f"The node calls the effect {name!r} in another order than before: an earlier call got "
            f"the outcome of {key}. The node has to run again; then each call gets its own. A "
            "worker does that by itself; with only the saver, invoke the graph again with None."
        )
        self.key, self.effect = key, name


class NotSettled(Error):
    """An effect cannot be settled now.

    Raised when `settle` is called for an effect that has an outcome already, or whose run is being
    driven. Nothing was changed.

    What to do: List `effects` again; wait until the run is no longer driven.

    Attributes:
        key (str): Key of the effect.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"Effect {key} cannot be settled: {why}")
        self.key = key


class EffectRefused(BaseException):
    """An evaluation called an effect that it has no rule for.

    Raised in a run of an evaluation when an effect, an unknown tool or a write to the store is
    reached without a rule. The call is not made, and the run fails. It is a `BaseException`, so
    that `except Exception` in a node does not swallow it.

    What to do: Simulate the effect: `evaluate(…, effects={name: value_or_function})`.

    Attributes:
        effect (str): Name of the effect.
        why (str): Why it was refused.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"The effect {name!r} was not called: {why}. Simulate it with "
            f"evaluate(..., effects={{{name!r}: value_or_function}})."
        )
        self.effect, self.why = name, why


class Unanswered(Error):
    """An evaluation run waits for something that its example does not provide.

    Raised when the run asks more questions than `Example.answers` has, or waits for a signal that
    is not in `Example.signals`. The run fails with it.

    What to do: Add the answer or the signal to the example.

    Attributes:
        run_id (str): The run.
    """

    def __init__(self, run_id: str, what: str, hint: str) -> None:
        super().__init__(f"Run {run_id} of an evaluation {what}. {hint}")
        self.run_id = run_id
