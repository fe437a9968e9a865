"""A lean HTTP/1.1 client on loopback: one that costs less than the servers it measures."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class Connection:
    """One connection that is kept alive; requests go one after another."""

    def __init__(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._port, self._reader, self._writer = port, reader, writer

    def send(self, method: str, path: str, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)

    async def head(self) -> dict[str, str]:
        """Header fields of the answer. Raises RuntimeError unless it is a success."""
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = text.rstrip().split("\r\n")
        fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if status.split()[1][0] != "2":
            said = await self._reader.readexactly(int(fields.get("content-length", 0)))
            raise RuntimeError(f"{status}: {said.decode()[:500]}")
        return fields

    async def parts(self, fields: dict[str, str]) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        if "content-length" in fields:
            yield await self._reader.readexactly(int(fields["content-length"]))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of one request, as JSON."""
        self.send(method, path, body)
        said = b"".join([part async for part in self.parts(await self.head())])
        return json.loads(said) if said.strip() else None


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        yield Connection(port, reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
