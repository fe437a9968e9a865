"""The application's own commands, one module per subject."""

from __future__ import annotations

import typer

commands = typer.Typer(
    help="An e-mail campaign in which each (campaign, contact) pair is one durable thread.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
