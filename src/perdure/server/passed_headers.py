"""Request headers that a run gets in `config["configurable"]`, as `http.configurable_headers` of a
langgraph.json says.

They are stored with the run. Credentials are passed on only if a pattern is their whole name.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from fastapi import Request

CREDENTIALS = frozenset({"authorization", "cookie", "x-api-key", "proxy-authorization"})


class PassedHeaders:
    """Patterns of header names, such as `x-my-*`; one with `!` before it excludes."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        lowered = [one.lower() for one in patterns]
        self._includes = [one for one in lowered if not one.startswith("!")]
        self._excludes = [one[1:] for one in lowered if one.startswith("!")]

    def __bool__(self) -> bool:
        return bool(self._includes)

    def of(self, request: Request) -> dict[str, str]:
        """The headers to pass on, by their names in lower case."""
        return {name: value for name, value in request.headers.items() if self._is_passed(name)}

    def _is_passed(self, name: str) -> bool:
        if any(fnmatchcase(name, one) for one in self._excludes):
            return False
        if name in CREDENTIALS:
            return name in self._includes
        return any(fnmatchcase(name, one) for one in self._includes)
