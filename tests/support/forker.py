"""A process that forks after its saver was used: `python -m tests.support.forker <url> <how>`.

Both go on with the saver they have, on threads of their own and on the one both know. `how` says
how the child ends: `exit`, as any interpreter does, or `_exit`, at once.
"""

import os
import sys

from perdure import Saver
from tests.support.crowd import build, on, say


def main(url: str, how: str) -> None:
    saver = Saver(url, "async")
    graph = build(saver)
    for n in range(3):
        graph.invoke(say(f"before {n}"), on("known"))
    child = os.fork()  # some of it may still be queued: that is the parent's to commit
    name = "parent" if child else "child"
    for n in range(3):
        graph.invoke(say(f"{name} {n}"), on(name))
        assert len(graph.get_state(on(name)).values["messages"]) == 2 * (n + 1)
    if child == 0:
        assert len(graph.get_state(on("known")).values["messages"]) <= 6
        saver.flush()
        if how == "_exit":
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    for n in range(3):
        graph.invoke(say(f"after {n}"), on("known"))
    saver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
