"""Your own tables beside the journal, in the same Cloudflare D1 database.

    database = perdure.d1.Client("d1://:SECRET@journal.example.workers.dev/")
    [rows] = database.batch([("SELECT name FROM contacts WHERE id = ?", [7])], idempotent=True)

`Client.rows` gives dicts by the names of the columns. `TOTAL` counts what this process has asked of
D1: requests, and rows read and written, which is what Cloudflare charges for. `PROTOCOL` is the
version of what is spoken with the Worker.

Writes that belong to an effect go through `perdure.transaction()`, and are committed with it.
"""

from __future__ import annotations

from perdure.journal.d1_client import PROTOCOL, TOTAL, D1Error, Usage
from perdure.journal.d1_client import D1Client as Client

__all__ = ["PROTOCOL", "TOTAL", "Client", "D1Error", "Usage"]
