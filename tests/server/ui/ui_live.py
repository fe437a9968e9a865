"""The live updates of an open tab, read in a thread during a test."""

from __future__ import annotations

import contextlib
import re
import threading

import httpx

from tests.support.ui import Page, Person


class Stream:
    """The events of a page's live connection, read in a thread."""

    def __init__(self, person: Person, page: Page) -> None:
        address = re.search(r'sse-connect="([^"]+)"', page.html)
        assert address
        self.lines: list[str] = []
        self.is_open = False
        self._address, self._person = address[1].replace("&amp;", "&"), person
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),  # the server ends
            self._person.http.stream("GET", self._address, timeout=60) as response,
        ):
            self.is_open = response.status_code == 200
            for line in response.iter_lines():
                self.lines.append(line)

    @property
    def events(self) -> list[str]:
        return [one.removeprefix("event: ") for one in self.lines if one.startswith("event: ")]
