"""What MkDocs calls while it makes the manual (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

_FETCHED = "https://unpkg.com/iframe-worker/shim"
"""What the offline plugin's pages load so that the search works in pages opened as files."""

_OUTPUT = re.compile(r"<!-- output[^>]*-->\n```text\n")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What a block printed (scripts/page_outputs.py) looks other than code: see wide.css."""
    return _OUTPUT.sub("``` { .text .output }\n", markdown)


_PRIVATE = re.compile(r'(?m)^ +<span class="n">_[a-z]\w*</span><span class="p">:</span>.*\n')
"""A parameter in a signature that fastload's own parts give."""


def on_page_content(html: str, **_: Any) -> str:
    return _PRIVATE.sub("", html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """With a script of the manual's own in its place, the search needs no network."""
    return output.replace(_FETCHED, "../" * page.url.count("/") + "search-in-files.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """As for a page: 404.html is a template."""
    return output_content.replace(_FETCHED, "search-in-files.js")
