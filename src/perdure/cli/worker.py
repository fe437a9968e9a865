"""`perdure worker` and `perdure tick`: drive due runs, until stopped or once."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from perdure.cli.options import Concurrency, LogJson, Place, RuntimeAt
from perdure.cli.output import print_json
from perdure.cli.target import measured, observed, one_place, runtime_at, wait_until_open

Quiet = Annotated[bool, Option("--quiet", help="Log warnings only, not a line for each segment.")]


def worker(
    place: Place = None,
    at: RuntimeAt = None,
    concurrency: Concurrency = 50,
    grace: Annotated[
        float, Option(metavar="SECONDS", help="Time for running steps to finish when it stops.")
    ] = 10,
    until_idle: Annotated[bool, Option("--until-idle", help="Stop when nothing is due.")] = False,
    metrics: Annotated[
        str | None,
        Option(
            metavar="[HOST:]PORT",
            help="Serve /metrics for Prometheus here. Without a host, on this machine only.",
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: LogJson = False,
) -> None:
    """Drive runs until SIGTERM or SIGINT.

    Then it drains and exits with 0. If the variables of OpenTelemetry or LangSmith are set, it
    sends traces, metrics and scores, and says so when it starts.
    """
    import asyncio
    import logging
    from dataclasses import asdict
    from datetime import timedelta

    from perdure.cli.log_output import configure_logging, log_json

    configure_logging(quiet=quiet)
    log = logging.getLogger("perdure")
    rt = observed(runtime_at(one_place(place, at)))
    if as_json:
        log_json(rt, quiet=quiet)
    if metrics is not None:
        log.info("metrics at %s", measured(rt).serve(metrics))

    async def work() -> None:
        if not until_idle:
            await wait_until_open(rt)
        async with rt:
            log.info("working on %s at %s", ", ".join(rt.graphs) or "nothing", rt.url)
            counts = await rt.work(
                concurrency=concurrency, until_idle=until_idle, grace=timedelta(seconds=grace)
            )
            done = [f"{count} {name}" for name, count in asdict(counts).items() if count]
            log.info("stopped: %s", ", ".join(done) or "nothing done")

    asyncio.run(work())


def tick(
    place: Place = None,
    at: RuntimeAt = None,
    limit: Annotated[int, Option(metavar="N", help="Segments to drive in total.")] = 25,
    budget: Annotated[
        float | None,
        Option(metavar="SECONDS", help="Claim nothing more after this time.", show_default="none"),
    ] = None,
    concurrency: Concurrency = 10,
    quiet: Quiet = False,
    as_json: LogJson = False,
) -> None:
    """Drive what is due, then exit. For use from cron.

    Prints what it did as one line of JSON, with the fields of `Counts`.
    """
    import asyncio
    from datetime import timedelta

    from perdure.cli.log_output import configure_logging, log_json

    configure_logging(quiet=quiet)
    rt = observed(runtime_at(one_place(place, at)))
    if as_json:
        log_json(rt, quiet=quiet)

    async def drive() -> None:
        async with rt:
            counts = await rt.tick(
                limit,
                budget=None if budget is None else timedelta(seconds=budget),
                concurrency=concurrency,
                handle_signals=True,
            )
            print_json(counts)

    asyncio.run(drive())
