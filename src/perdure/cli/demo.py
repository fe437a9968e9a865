"""`perdure demo`: a month of an e-mail campaign in a minute, while its workers are killed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from perdure.errors import BadArgument, needs_extra

PACKAGES = ("perdure._demo.campaign", "examples.campaign")
"""The campaign in an installed package, and in the repository."""
CONTACTS = range(3, 11)
REPOSITORY = Path(__file__).parents[3]


def demo(
    contacts: Annotated[
        int | None, Option(metavar="N", help="Number of contacts, 3 to 10.", show_default="5")
    ] = None,
    seed: Annotated[
        int | None, Option(metavar="N", help="Seed of replies and failures.", show_default="random")
    ] = None,
    plain: Annotated[
        bool, Option("--plain", help="Print lines instead of a live display.")
    ] = False,
) -> None:
    """Watch a month-long agent survive constant kills.

    Plays a month of an e-mail campaign in about a minute while its workers are killed. Needs the
    packages of the extra `demo`; without them it prints the command that installs them.
    """
    if contacts is not None and contacts not in CONTACTS:
        raise BadArgument(f"--contacts {contacts}: use 3 to 10.")
    options = {"contacts": contacts, "seed": seed, "plain": plain}
    code = _load_demo().main(**{name: one for name, one in options.items() if one is not None})
    if code:
        raise Exit(code)


def _load_demo() -> Any:
    if (REPOSITORY / "examples" / "campaign").is_dir():
        sys.path.insert(0, str(REPOSITORY))
    for package in PACKAGES:
        try:
            return importlib.import_module(f"{package}.demo.play")
        except ModuleNotFoundError as error:
            if f"{package}.demo.play.".startswith(f"{error.name}."):
                continue
            raise BadArgument(needs_extra("The demo", "demo")) from error
    raise BadArgument("This installation has no demo: install perdure from a wheel.")
