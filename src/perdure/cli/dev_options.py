"""The options of `perdure dev`, as passed to its child."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class DevOptions:
    """The options of `perdure dev`."""

    file: str
    """The langgraph.json."""
    at: str
    """The project's place, for commands to paste; empty if it is the current folder."""
    concurrency: int
    grace: float
    as_json: bool = False
    host: str = "127.0.0.1"
    socket: int | None = None
    """The descriptor of the listening socket. None: nothing is served."""
    hosts: list[str] = field(default_factory=list)
    cors: list[str] = field(default_factory=list)
    insecure: bool = False
    ui: bool = True
    browser: bool = False
    """Open the pages in a browser."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> DevOptions:
        return cls(**json.loads(text))
