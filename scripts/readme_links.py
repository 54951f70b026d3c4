"""Makes the relative links of README.md absolute, in place: a package index shows that page alone.

    python scripts/readme_links.py https://github.com/OWNER/NAME COMMIT

Run by `.github/workflows/wheels.yml` before anything is built, where the server says both. Pages
are linked as `ADDRESS/blob/COMMIT/docs/data.md`, pictures as `ADDRESS/raw/COMMIT/docs/gain.svg`,
which GitHub and GitLab have.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
_LINK = re.compile(r"(?P<picture>!?)(?P<words>\[[^]]*\])\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_ABSOLUTE = re.compile(r"[a-z]+:")


def links(text: str) -> list[str]:
    """The targets of all links and pictures of a page in Markdown, those in code left out."""
    return [link["target"] for part in _CODE.split(text)[::2] for link in _LINK.finditer(part)]


def absolute(text: str, address: str, commit: str) -> str:
    """The page with the targets of its relative links at that commit of a repository.

    Args:
        text: a page in Markdown that lies in the repository's root.
        address: of the repository, without a slash at its end.
        commit: a hash, or the name of a tag.
    """

    def at_the_commit(link: re.Match[str]) -> str:
        target = link["target"]
        if target.startswith("#") or _ABSOLUTE.match(target):
            return link[0]
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}{link['words']}({address}/{kind}/{commit}/{target})"

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(at_the_commit, part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(), *sys.argv[1:]))
