"""Worker processes of a measurement: started together, told what to do, killed or let go."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 300.0
"""Seconds after which processes that do not finish are killed, which is an error."""


class Fleet:
    """Some processes with one role; see `bench.hands` for what they understand."""

    def __init__(self, role: str, url: str, size: int) -> None:
        self._hands = [
            subprocess.Popen(
                [sys.executable, "-m", "bench.hands", role, url, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(size)
        ]

    def __len__(self) -> int:
        return len(self._hands)

    def ready(self) -> None:
        for hand in self._hands:
            line = self._line(hand)
            assert line == "ready", f"a worker process said {line!r} instead of ready"

    def tell(self, line: str) -> None:
        """Give every process the same order."""
        for hand in self._hands:
            assert hand.stdin is not None
            hand.stdin.write(line + "\n")
            hand.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        """What they answered, once all did."""
        return [json.loads(self._line(hand)) for hand in self._hands]

    def ask(self, line: str) -> list[dict[str, Any]]:
        self.tell(line)
        return self.answers()

    def drain(self) -> None:
        """SIGTERM: whatever they work on, they stop and answer."""
        for hand in self._hands:
            hand.terminate()

    def kill(self) -> None:
        """SIGKILL, all at once."""
        for hand in self._hands:
            hand.kill()
        for hand in self._hands:
            hand.wait()

    def let_go(self) -> None:
        """Close their input, at which they end."""
        for hand in self._hands:
            if hand.stdin is not None and hand.poll() is None:
                hand.stdin.close()
        for hand in self._hands:
            try:
                hand.wait(30)
            except subprocess.TimeoutExpired:
                hand.kill()
                hand.wait()
            if hand.stdout is not None:
                hand.stdout.close()

    def _line(self, hand: subprocess.Popen[str]) -> str:
        assert hand.stdout is not None
        line = hand.stdout.readline()
        assert line, f"a worker process ended with {hand.wait()}"
        return line.strip()


@contextmanager
def fleet(role: str, url: str, size: int = 1) -> Iterator[Fleet]:
    """`size` processes that are ready to work; they are gone afterwards."""
    hands = Fleet(role, url, size)
    watch = threading.Timer(PATIENCE, hands.kill)
    watch.start()
    try:
        hands.ready()
        yield hands
    except BaseException:
        hands.kill()
        raise
    finally:
        watch.cancel()
        hands.let_go()
