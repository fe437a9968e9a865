"""Tokens, as an operator makes them: with `perdure tokens create`."""

from __future__ import annotations

import contextlib
import io
from importlib.metadata import entry_points

import pytest


def create_token(url: str, name: str, *scopes: str) -> str:
    """A new token of a journal. A server that is running may notice it seconds later."""
    [command] = entry_points(group="console_scripts", name="perdure")
    arguments = ["tokens", "create", name]
    for scope in scopes:
        arguments += ["--scope", scope]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setenv("PERDURE_URL", url)
        command.load()(arguments)
    return next(word for word in said.getvalue().split() if word.startswith("perdure_"))
