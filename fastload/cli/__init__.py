"""The command `fastload`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point. Imports only what the command that was typed needs."""
    from fastload.cli.app import app

    app()
