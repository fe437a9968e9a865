"""Request headers that are copied to a run's `config["configurable"]`, as set by
`http.configurable_headers` of a langgraph.json.

They are stored with the run. A header with credentials is copied only if a pattern is its full
name.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from fastapi import Request

CREDENTIALS = frozenset({"authorization", "cookie", "x-api-key", "proxy-authorization"})


class PassedHeaders:
    """Patterns of header names, such as `x-my-*`; a leading `!` excludes."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        lowered = [one.lower() for one in patterns]
        self._includes = [one for one in lowered if not one.startswith("!")]
        self._excludes = [one[1:] for one in lowered if one.startswith("!")]

    def __bool__(self) -> bool:
        return bool(self._includes)

    def of(self, request: Request) -> dict[str, str]:
        """The headers to pass on, with names in lower case."""
        return {name: value for name, value in request.headers.items() if self._is_passed(name)}

    def _is_passed(self, name: str) -> bool:
        if any(fnmatchcase(name, one) for one in self._excludes):
            return False
        if name in CREDENTIALS:
            return name in self._includes
        return any(fnmatchcase(name, one) for one in self._includes)
