"""`python -m examples.campaign.demo`."""

from __future__ import annotations

import argparse

from . import __doc__ as about
from . import main

parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
parser.add_argument("--contacts", type=int, default=5, help="3 to 10")
parser.add_argument("--seed", type=int, help="the same one gives the same month")
parser.add_argument("--plain", action="store_true", help="lines, no live display")
raise SystemExit(main(**vars(parser.parse_args())))
