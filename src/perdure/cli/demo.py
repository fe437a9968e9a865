"""`perdure demo`: a month of an e-mail campaign in a minute, its workers killed all the time."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.errors import BadArgument

HOMES = ("perdure._demo.campaign", "examples.campaign")
"""Where the campaign is: in the package that is installed, and in the repository."""
FEW = range(3, 11)
"""How many contacts may be written to."""
REPOSITORY = Path(__file__).parents[3]


def demo(
    contacts: Annotated[
        int | None, typer.Option(metavar="N", help="How many are written to, 3 to 10; default: 5.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Decides who replies, and what fails when.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines, no live display.")] = False,
) -> None:
    """See a month-long agent survive being killed all the time."""
    if contacts is not None and contacts not in FEW:
        raise BadArgument(f"--contacts {contacts}: the demo writes to 3 to 10.")
    given = {"contacts": contacts, "seed": seed, "plain": plain}
    code = _campaign().main(**{name: one for name, one in given.items() if one is not None})
    if code:
        raise typer.Exit(code)


def _campaign() -> Any:
    if (REPOSITORY / "examples" / "campaign").is_dir():
        sys.path.insert(0, str(REPOSITORY))
    for home in HOMES:
        try:
            found = importlib.util.find_spec(f"{home}.demo")
        except ModuleNotFoundError:
            continue
        if found is None:
            continue
        try:
            return importlib.import_module(f"{home}.demo")
        except ModuleNotFoundError as error:
            raise BadArgument(
                f"The demo needs {error.name}: pip install '.[demo]' where perdure is cloned."
            ) from error
    raise BadArgument("The demo is not part of this installation: install perdure from a wheel.")
