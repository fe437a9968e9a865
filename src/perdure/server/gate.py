"""Whether a request may pass, and the `Api` that its endpoint gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request

from perdure.server.caller import ANYONE
from perdure.server.context import Api
from perdure.server.lifespan import SharedLifespan
from perdure.server.open_streams import OpenStreams
from perdure.server.options import ServerOptions

if TYPE_CHECKING:
    from perdure.runtime import Runtime


class Gate:
    """The entrance of one runtime's routes."""

    def __init__(self, runtime: Runtime, options: ServerOptions, lifespan: SharedLifespan) -> None:
        self.runtime, self.options, self.lifespan = runtime, options, lifespan
        self.streams = OpenStreams(options.max_streams)

    async def admit(self, request: Request, *, public: bool) -> Api:
        """The `Api` for this request. Raises `ApiError`. `public`: it needs no credentials."""
        return Api(self.runtime, self.options, ANYONE, self.lifespan, self.streams)
