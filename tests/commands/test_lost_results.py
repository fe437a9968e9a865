"""Results of operations whose answer is lost.

If the batch is found to be committed, an operation with a key gets its rows by that key; one
without gets none, so its result must not be made from rows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import perdure

RENEW = "claims.py: renew"
"""Is not queued: if its answer is lost, its caller is told."""
WITHOUT_ROWS = {"is_left", "no_result"}
"""What makes a result without rows: `is_left` says that the work is to be done again."""


def keyless(path: Path) -> Iterator[tuple[str, ast.expr]]:
    """The writes of a module that have no key, and what makes their results."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "Op":
            continue
        given = {one.arg for one in node.keywords}
        writes = "write" in given or len(node.args) > 3
        if writes and len(node.args) < 5 and not given & {"key", "proof"}:
            yield f"{path.name}: {ast.unparse(node.args[0]).strip(chr(39))}", node.args[2]


def test_a_write_without_a_key_makes_its_result_without_rows() -> None:
    found, wrong = 0, []
    for path in sorted(Path(perdure.__path__[0]).rglob("*.py")):
        for name, result in keyless(path):
            found += 1
            if {one.id for one in ast.walk(result) if isinstance(one, ast.Name)} - WITHOUT_ROWS:
                wrong.append(name)
    assert found > 10, "and `write_op` makes those that have no result at all"
    assert wrong == [RENEW]
