"""The command `perdure`: the command line is an extra, and the core works without what it needs."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        from perdure.cli import main as run
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write("perdure: the command line needs the extra: install perdure[cli].\n")
        return 2
    return run(argv)
