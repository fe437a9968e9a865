"""Programs in a fresh interpreter."""

import subprocess
import sys
import textwrap


def run_python(program: str, *arguments: str) -> None:
    """Run a program, which must end well."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr


def loaded_after(code: str) -> set[str]:
    """The top-level modules in a fresh interpreter that ran some code."""
    code += "; import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())
