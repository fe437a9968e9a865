"""`with` and `async with` for everything that is opened by `setup()` and closed by `close()`."""

from __future__ import annotations

import asyncio
from typing import Self


class ContextManaged:
    """Opens on entering a `with` or `async with` block, and closes on leaving it."""

    def setup(self) -> None:
        """Open now. The default does nothing."""

    def close(self) -> None:
        """Close. The default does nothing."""

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.setup)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.to_thread(self.close)
