"""`python -m examples.campaign`: the application's own commands.

`drafts` and `approve` approve drafts, `perdure inbox` and `perdure answer` single ones. `perdure
runs` and `perdure show` show threads. All take the same database with `--at`.

Exit codes: 0 success; 1 a sheet was refused, a person said no, or drafts were no longer open; 2
wrong usage, or a failed `check`.
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
