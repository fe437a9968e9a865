"""Tokens, as an operator makes them: with `perdure tokens create`."""

from __future__ import annotations

import contextlib
import io

import pytest

from tests.support.commands import main


def create_token(url: str, name: str, *scopes: str) -> str:
    """A new token of a journal. A server that is running may notice it seconds later."""
    arguments = ["tokens", "create", name]
    for scope in scopes:
        arguments += ["--scope", scope]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setenv("PERDURE_URL", url)
        main(arguments)
    return next(word for word in said.getvalue().split() if word.startswith("perdure_"))
