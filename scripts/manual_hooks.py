"""What MkDocs calls while it makes the manual (`hooks` in mkdocs.yml)."""

from __future__ import annotations

from typing import Any

_FETCHED = "https://unpkg.com/iframe-worker/shim"
"""What the offline plugin's pages load so that the search works in pages opened as files."""


def on_post_page(output: str, **_: Any) -> str:
    """With a script of the manual's own in its place, the search needs no network."""
    return output.replace(_FETCHED, "search-in-files.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """As for a page: 404.html is a template."""
    return output_content.replace(_FETCHED, "search-in-files.js")
