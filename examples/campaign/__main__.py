"""`python -m examples.campaign`: the application's own commands.

Drafts are approved with `perdure inbox` and `perdure answer`, threads are looked at with `perdure
runs` and `perdure show`, all with `--at` the same database.

Exit codes: 0 fine, 1 a sheet was refused, 2 wrong use.
"""

from __future__ import annotations

import sys

import perdure

from .app import Unknown
from .commands import campaigns, commands, mail, people
from .contacts import BadSheet, Refused, UnknownCampaign

__all__ = ["campaigns", "mail", "people"]


def main() -> int:
    try:
        commands()
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    except (Unknown, UnknownCampaign, BadSheet, ValueError, perdure.Error) as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
