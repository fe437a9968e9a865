"""`perdure` and `python -m perdure` are the command line."""

import sys


def main() -> int:
    """Run a command and return its exit code. The command line is an extra: the core works without
    Typer and what it needs."""
    try:
        from perdure.cli import main
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.stderr.write("perdure: the command line needs the extra: install perdure[cli].\n")
        return 2
    return main()


if __name__ == "__main__":
    sys.exit(main())
