"""Everything perdure raises on purpose.

Facts are attributes, the message says what happened, to which id, and what to do next.
"""

from __future__ import annotations


class Error(Exception):
    """Base of every error perdure raises on purpose."""


class BadURL(Error):
    """The database URL or the place it names cannot be used."""


class SchemaTooNew(Error):
    """The database was migrated by a newer perdure than this one."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"The journal has schema version {found}, this perdure knows only up to {known}. "
            "Upgrade perdure in this process; nothing was read or written."
        )
        self.found, self.known = found, known


class Unavailable(Error):
    """The database could not be reached, or did not answer before its deadline.

    Calling again is safe. Unless the message says that the outcome of a commit is unknown, nothing
    of the refused operation is in the journal.
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


class Closed(Error):
    """The journal or saver was used after `close()`."""


class WriteLost(Error):
    """An operation nobody waited for could not be stored; raised at the next call.

    It was queued by `durability="auto"`, `"async"` or `"exit"` and the database refused it.
    """


class Unserializable(Error):
    """A value cannot be stored; refused before anything was acknowledged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be stored: {reason}")
        self.path, self.reason = path, reason


class TypeNotAllowed(Error):
    """A type outside the allowlist was met, on the way in or on the way out."""

    def __init__(self, module: str, name: str, where: str) -> None:
        super().__init__(
            f"{where}: the type {module}.{name} is not allowed. If it is yours, pass it: "
            f"Saver(..., allow=[{name}]). (A model, dataclass or enum named in the graph's state "
            "schema is allowed by itself, if perdure.Saver was imported before it was compiled.)"
        )
        self.module, self.name, self.where = module, name, where


class TooLarge(Error):
    """A state is over the size limit; refused before anything was acknowledged."""

    def __init__(self, where: str, size: int, limit: int) -> None:
        super().__init__(
            f"{where}: {size:,} bytes are over the limit of {limit:,}. Keep large data outside "
            "the state and store a reference, or raise Saver(..., max_bytes=...)."
        )
        self.where, self.size, self.limit = where, size, limit


class Damaged(Error):
    """A stored row cannot be read back as it was written. Other threads are not affected."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where} is damaged: {reason}. Other threads go on. Restore this one from a backup, "
            "continue from an older checkpoint, or delete the thread."
        )
        self.where, self.reason = where, reason


class WrongKey(Error):
    """A row is encrypted with a key this process does not have, or not encrypted at all."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} cannot be opened: {reason}")
        self.where, self.reason = where, reason


class LeaseLost(BaseException):
    """Another worker drives this run now. Nothing of what this one still does is stored.

    Not an `Exception`: the code of an agent must not catch it and go on.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {run_id} is driven by another worker now, or was stopped; this one writes "
            "nothing more. There is nothing to do."
        )
        self.run_id = run_id


class BadArgument(Error, ValueError):
    """A call that cannot mean anything: the message says what to pass instead."""


class UnknownGraph(Error):
    """No graph of that name is registered with this runtime."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"No graph {name!r} is registered here; there is {', '.join(known) or 'none'}. "
            "Call Runtime.register(graph, name=...) first."
        )
        self.name, self.known = name, known


class UnknownReflector(BadArgument):
    """A reflection names a reflector that this process does not have."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"No reflector {name!r} is known here: {why}. Bring it back under this name, then "
            "retry the reflection; or cancel it."
        )
        self.name = name


class ReflectionFailed(Error):
    """A reflection came to no end: it is held until a person retries or cancels it."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(
            f"Reflection {id} is held: {reason.rstrip('.')}. Correct the cause, then call "
            f"retry({id!r}) or cancel() of its executor, or `perdure reflections`."
        )
        self.id, self.reason = id, reason


class ReflectionLeft(Error):
    """An executor was shut down before a reflection was over. It is on disk, and goes on with the
    next executor of the same name."""

    def __init__(self, id: str, executor: str) -> None:
        super().__init__(
            f"The executor {executor!r} was shut down before reflection {id} was over. Nothing is "
            "lost: it is kept, and the next executor of this name goes on with it."
        )
        self.id, self.executor = id, executor


class NotDurable(Error):
    """A graph cannot be driven by a runtime as it is."""


class NotFound(Error):
    """There is no such run, wait or schedule in this journal."""

    def __init__(self, what: str, id: str) -> None:
        super().__init__(f"There is no {what} {id!r} in this journal, or no longer.")
        self.what, self.id = what, id


class ThreadBusy(Error):
    """A thread has a run under way, and the call asked not to wait for it."""

    def __init__(self, thread_id: str, why: str) -> None:
        super().__init__(
            f"Thread {thread_id!r} has a run that {why}. Wait for it, resume or retry it, cancel "
            "it, or start with another multitask_strategy."
        )
        self.thread_id = thread_id


class WrongState(Error):
    """A run is not in a state in which this can be done; nothing was changed."""

    def __init__(self, run_id: str, state: str, verb: str, why: str) -> None:
        super().__init__(f"Run {run_id} is {state} and cannot {verb}: {why}")
        self.run_id, self.state = run_id, state


class AnswerRefused(Error):
    """An answer was not accepted; nothing was changed."""

    def __init__(self, wait_id: str, why: str) -> None:
        super().__init__(f"Wait {wait_id} takes no answer: {why}")
        self.wait_id = wait_id


class AlreadyAnswered(AnswerRefused):
    """Somebody answered before."""


class WaitExpired(AnswerRefused):
    """The answer came after `expires`."""


class WaitClosed(AnswerRefused):
    """The run ended, or asks something else now."""


class WrongWait(AnswerRefused):
    """The wait is for the clock or a signal, not for a person."""


class BadAnswer(AnswerRefused):
    """The answer does not fit the question's `response_schema`."""


class Expired(Error):
    """Inside an agent: nobody answered an `ask` in time, and it has no default."""


class TakenBack(Error):
    """Inside an agent: a signal took an `ask` back, and it has no default. `value` is what came."""

    def __init__(self, name: str, value: object = None) -> None:
        super().__init__(
            f"The signal {name!r} took the question back. Give ask() a default=, or catch this."
        )
        self.name, self.value = name, value


class NotInRun(Error):
    """A function for the code of an agent was called outside of a graph."""


class StepTimeout(Error):
    """A step made no progress for as long as its graph was registered to allow."""


class NotDone(Error):
    """Raise this in an effect that knows that nothing happened on the far side.

    Then there is no doubt about it: it may be tried again, also with `unknown="hold"`.
    """


class EffectFailed(Error):
    """An effect failed for good, with an exception that cannot be made again from its record."""

    def __init__(self, key: str, kind: str, message: str) -> None:
        super().__init__(f"Effect {key} failed: {kind}: {message}")
        self.key, self.kind, self.message = key, kind, message


class EffectTimeout(Error, TimeoutError):
    """An effect took longer than its `timeout`. Whether it happened is not known."""

    def __init__(self, key: str, seconds: float) -> None:
        super().__init__(f"Effect {key} gave no answer within {seconds:g} s.")
        self.key, self.seconds = key, seconds


class EffectHeld(BaseException):
    """Nobody knows what became of an effect, and its policy is to ask a person.

    The run is held until `Runtime.settle`. Not an `Exception`: the code of an agent must not catch
    it and go on.
    """

    def __init__(self, key: str, name: str, why: str) -> None:
        super().__init__(
            f"What became of the effect {name!r} is not known ({why}). Find out, then settle it: "
            f"Runtime.settle({key!r}, 'done', result), 'retry' or 'fail'; or perdure settle."
        )
        self.key, self.effect, self.why = key, name, why


class Postponed(BaseException):
    """An effect is to be tried again later, and until then its run gives its process back.

    Not an `Exception`: the code of an agent must not catch it and go on.
    """

    def __init__(self, key: str, name: str, until: int, attempt: int) -> None:
        super().__init__(f"The effect {name!r} is tried again later.")
        self.key, self.effect, self.until, self.attempt = key, name, until, attempt


class NotSettled(Error):
    """An effect is not one that a person can settle now; nothing was changed."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"Effect {key} cannot be settled: {why}")
        self.key = key
