"""Commands and their wording are the same on each database: their tests run on SQLite."""

import pytest

from perdure.cli import main
from tests.support.commands import Command, Told


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`perdure` with these arguments, in this process."""

    def run(*arguments: str) -> Told:
        capsys.readouterr()
        code = main(arguments)
        return Told(code, *capsys.readouterr())

    return run
