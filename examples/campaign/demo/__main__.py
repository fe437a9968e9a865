"""`python -m examples.campaign.demo`."""

from __future__ import annotations

from .play import arguments, main

raise SystemExit(main(**arguments("A month of an e-mail campaign in about a minute.")))
