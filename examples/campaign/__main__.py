"""`python -m examples.campaign`: the application's own commands.

Drafts are approved with `drafts` and `approve`, or one by one with `perdure inbox` and `perdure
answer`; threads are looked at with `perdure runs` and `perdure show`, all with `--at` the same
database.

Exit codes: 0 fine, 1 a sheet was refused, a person said no, or drafts were not open any more, 2
wrong use, or a `check` that failed.
"""

from __future__ import annotations

import sys

import perdure

from .commands import campaigns, check, commands, drafts, mail, people
from .contacts import BadSheet, Refused
from .erasure import StillDriven
from .errors import Unknown

__all__ = ["campaigns", "check", "commands", "drafts", "mail", "people"]


def main() -> int:
    try:
        commands()
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        print(f"campaign: {error.code}", file=sys.stderr)
        return 2
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    except (Unknown, StillDriven, BadSheet, ValueError, perdure.Error) as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
