"""The secret that all servers on a journal share. Pure, no I/O.

It signs browser sessions, forms and links to questions, so any server accepts what another one
signed. If two processes create it at once, `insert_server_secret` keeps the first, and both read
that one. With encryption on it is stored encrypted, like every blob.
"""

from __future__ import annotations

import secrets

from perdure.errors import Damaged
from perdure.journal import NO_PROOF, Op, Plan, Statement
from perdure.serde import places
from perdure.serde.serializer import Serializer

BYTES = 32


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
    return Op(
        "server_secret",
        [Statement("server_secret", {})],
        lambda rows: bytes(rows[0][0][0]) if rows[0] else None,
    )


def _insert(body: bytes) -> Op[bytes | None]:
    find = Statement("server_secret", {})
    return Op(
        "insert_server_secret",
        [Statement("insert_server_secret", {"body": body}), find],
        lambda rows: bytes(rows[-1][0][0]) if rows[-1] else None,
        write=True,
        key=find,
        proof=NO_PROOF,
    )
