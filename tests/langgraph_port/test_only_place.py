"""No other module of perdure uses a private part of LangGraph or LangChain."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import perdure
from perdure.langgraph_port import VERIFIED

HOME = Path(perdure.__file__).parent
PRIVATE = re.compile(
    r"""
      __pregel | lang(graph|chain|chain_core|smith)\.(\S*\.)?_[a-z]
    | from\ lang(graph|chain|smith)\S*\ import\ _ | f_back | _getframe | cell_contents | __closure__
    | co_freevars | cr_await | _fut_waiter
    | branch:to: | "join: | __start__ | __interrupt__ | __copy__ | __error_source
    | execution_info | checkpoint_map | var_child_runnable_config | _DeltaSnapshot | langgraph_node
    | _identifying_params | "_loop" | _prepare_batch | \._cursor\( | repr\(counter
    """,
    re.VERBOSE,
)
OWN_STACK = {
    "testing/crashtest/observer.py": ("f_back", "_getframe", "langgraph_node"),
    "execution/segment.py": ("f_back",),
    "langmem/reflector.py": ("__interrupt__",),
}
"""They look for the agent's own lines on the stack, not for LangGraph's."""
ON_THE_WIRE = ("__interrupt__", "checkpoint_map", "langgraph_node")
"""Words that the Agent Server's clients send and read: public where that wire is spoken."""


def test_private_parts_are_used_in_the_port_alone() -> None:
    found = []
    for path in sorted(HOME.rglob("*.py")):
        name = path.relative_to(HOME).as_posix()
        if name.startswith("langgraph_port/"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = PRIVATE.search(line)
            allowed = (
                ON_THE_WIRE if name.startswith("server/agent_api/") else OWN_STACK.get(name, ())
            )
            if match and match[0] not in allowed:
                found.append(f"src/perdure/{name}:{number}: {line.strip()}")
    assert not found, "\n".join(["move these to langgraph_port/:", *found])


def test_the_port_names_the_releases_it_was_verified_with() -> None:
    for name, verified in VERIFIED.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", verified)
        assert version(name)
