"""The servers that are measured side by side: ours, and `langgraph dev` in `.venv-neighbours/`.

As a program, `python -m bench.servers URL PORT`, it is our server.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.databases import Kind
from bench.engines import LABEL
from bench.rounds import say
from perdure.testing.local_server import free_port

ROOT = Path(__file__).parent.parent
NEIGHBOURS = ROOT / ".venv-neighbours"
NEEDED = (
    "langgraph-cli[inmem]==0.4.40",
    "langgraph-api==0.16.7",
    "langgraph-runtime-inmem==0.36.7",
)
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Ours:
    """Our server in one process, its worker beside it."""

    database: Kind
    slow: bool = False

    @property
    def name(self) -> str:
        return f"perdure {LABEL[self.database]}"

    @contextmanager
    def serve(self, url: str) -> Iterator[int]:
        port = free_port()
        command = [sys.executable, "-m", "bench.servers", url, str(port)]
        with serving_process(command, ROOT, port):
            yield port


@dataclass(frozen=True, slots=True)
class Dev:
    """`langgraph dev`, which keeps everything in memory and pickles it every ten seconds."""

    name: str = "langgraph dev"
    database: Kind | None = None
    slow: bool = True
    """It looks for work once a second, so that fewer of some requests are enough."""

    @contextmanager
    def serve(self, url: str) -> Iterator[int]:
        port = free_port()
        with tempfile.TemporaryDirectory(prefix="perdure-dev-") as folder:
            shutil.copy(ROOT / "bench" / "server_graphs.py", Path(folder, "graphs.py"))
            graphs = {name: f"./graphs.py:{name}" for name in ("chat", "one", "gate")}
            settings = {"dependencies": ["."], "graphs": graphs}
            Path(folder, "langgraph.json").write_text(json.dumps(settings))
            command = [
                *(str(NEIGHBOURS / "bin" / "langgraph"), "dev", "--no-browser", "--no-reload"),
                *("--port", str(port), "--server-log-level", "ERROR"),
            ]
            with serving_process(command, Path(folder), port):
                yield port


Server = Ours | Dev


def install() -> None:
    """Put `langgraph dev` into `.venv-neighbours/`, unless it is there."""
    ready = NEIGHBOURS / f".ready-{'-'.join(NEEDED)}".replace("[", "-").replace("]", "")
    if ready.exists():
        return
    say("servers  installing langgraph dev in .venv-neighbours/")
    uv = str(Path(sys.executable).with_name("uv"))
    python = str(NEIGHBOURS / "bin" / "python")
    subprocess.run(
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, NEIGHBOURS], check=True
    )
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *NEEDED], check=True)
    ready.touch()


@contextmanager
def serving_process(command: list[str], folder: Path, port: int) -> Iterator[int]:
    """The process id of a server, while the block runs; its log is shown if it does not start."""
    keyless = {
        k: v for k, v in os.environ.items() if not k.startswith(("LANGSMITH_", "LANGCHAIN_"))
    }
    quiet = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command, cwd=folder, env=keyless | quiet, stdout=log, stderr=log, start_new_session=True
        )
        try:
            if not _answers(server, port):
                log.seek(0)
                said = log.read().decode(errors="replace")[-3000:]
                raise RuntimeError(f"{' '.join(command)} did not start:\n{said}")
            yield server.pid
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # its own group: nothing else is in it
            server.wait()


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ok", timeout=5).close()
            return True
        except OSError:
            time.sleep(0.05)
    return False


def main() -> None:
    import uvicorn

    import perdure
    from bench.server_graphs import GRAPHS

    url, port = sys.argv[1:]
    runtime = perdure.Runtime(url)
    for name, graph in GRAPHS.items():
        runtime.register(graph, name=name)
    uvicorn.run(runtime.asgi(), host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main()
