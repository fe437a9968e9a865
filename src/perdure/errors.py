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
