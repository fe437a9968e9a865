"""The machine and the versions a page of figures belongs to."""

import os
import platform
import sqlite3
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from bench.databases import Databases, ask
from bench.report import Table, millis

_LIBRARIES = (
    "perdure",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-cloudflare-d1",
    "langchain-core",
    "aiosqlite",
    "psycopg",
    "dbos",
    "sqlalchemy",
)


def describe(databases: Databases) -> Table:
    """Every fact a reader needs to doubt or repeat the figures."""
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "CPU": f"{_cpu()}, {os.cpu_count()} cores",
        "load average when the run began": f"{os.getloadavg()[0]:.2f}",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file system": f"{_file_system(databases.folder)}, "
        f"fsync of 4 KB {millis(_fsync(databases.folder))}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": _postgres(databases),
    } | {name: _version(name) for name in _LIBRARIES}
    return Table(["", "this run"], [[name, value] for name, value in facts.items()])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _file_system(folder: Path) -> str:
    """The type of the deepest mount point above the folder."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    over = [(m[1], m[2]) for m in mounts if folder.resolve().is_relative_to(m[1])]
    return max(over, key=lambda found: len(found[0]))[1] if over else "unknown"


def _fsync(folder: Path, tries: int = 50) -> float:
    took = []
    with open(folder / "fsync", "wb", buffering=0) as file:
        for _ in range(tries):
            file.write(b"\0" * 4096)
            start = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - start)
    return median(took)


def _postgres(databases: Databases) -> str:
    if not databases.has_postgres:
        return "not measured"
    with databases.fresh("postgres") as url:
        return " ".join(
            [str(ask(url, "SHOW server_version"))]
            + [f"{name}={ask(url, f'SHOW {name}')}" for name in ("fsync", "synchronous_commit")]
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
