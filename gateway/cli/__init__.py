"""The command `sluicegate`."""

from __future__ import annotations

import sys

from gateway.cli.app import app


def main() -> None:
    """Entry point of the command."""
    app(prog_name="sluicegate" if sys.argv[0].endswith("__main__.py") else None)
