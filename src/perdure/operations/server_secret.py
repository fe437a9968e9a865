"""The secret that all servers on a journal share. Pure, no I/O.

It signs browser sessions, forms and links to questions, so any server accepts what another one
signed. If two processes create it at once, `insert_entry` keeps the first, and both read
that one. With encryption on it is stored encrypted, like every blob.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from perdure.errors import Damaged
from perdure.journal import NO_PROOF, Op, Plan, Row, Statement
from perdure.serde import places
from perdure.serde.serializer import Serializer

BYTES = 32
ENTRY = "server secret"
_FIND = Statement("entry", {"name": ENTRY})


def server_secret(serializer: Serializer) -> Plan[bytes]:
    """Read the secret; create it on first use."""
    body: bytes | None = yield _read()
    if body is None:
        made = serializer.dumps(secrets.token_hex(BYTES), places.of_server_secret(), own=True)
        body = yield _insert(made)
    if body is None:
        raise Damaged(places.of_server_secret().name, "it was deleted just now")
    return bytes.fromhex(serializer.loads(body, places.of_server_secret(), str))


def _read() -> Op[bytes | None]:
    return Op("server_secret", [_FIND], _body)


def _insert(body: bytes) -> Op[bytes | None]:
    return Op(
        "insert_server_secret",
        [Statement("insert_entry", {"name": ENTRY, "body": body}), _FIND],
        _body,
        write=True,
        key=_FIND,
        proof=NO_PROOF,
    )


def _body(rows: Sequence[Sequence[Row]]) -> bytes | None:
    return bytes(rows[-1][0][1]) if rows[-1] else None
