"""The command line, one file a command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``paploss`` command."""
    try:
        from paploss.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "paploss":
            raise
        sys.exit(f"paploss: {error.name} is missing: pip install 'paploss[cli]'")
    run()
