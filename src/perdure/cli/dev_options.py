"""What `perdure dev` was asked for, as its child gets it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class DevOptions:
    """The options of `perdure dev`."""

    file: str
    """The langgraph.json."""
    at: str
    """The project as commands to paste name it; empty: it is the one here."""
    concurrency: int
    grace: float
    as_json: bool = False
    host: str = "127.0.0.1"
    socket: int | None = None
    """The descriptor of the listening socket. None: nothing is served."""
    hosts: list[str] = field(default_factory=list)
    cors: list[str] = field(default_factory=list)
    insecure: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> DevOptions:
        return cls(**json.loads(text))
