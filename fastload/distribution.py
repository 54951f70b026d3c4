"""The distribution that fastload was installed as, and the command that installs one of its
extras."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

# In the package index. The import name and the command are `fastload`; the index's `fastload` is
# another project.
NAME = "torch-fastload"

# The folder that `fastload` is imported from: site-packages, or a checkout.
_SOURCES = Path(__file__).resolve().parents[1]


def install_command(extra: str, *, upgrade: bool = False) -> str:
    """The command that installs `extra` the way fastload itself was installed.

    `pip install "torch-fastload[dali]"` from the package index; `pip install -e
    "/home/me/fastload[dali]"` where it was installed from a checkout (without `-e` where that was
    not editable), or is run from one without installation; `pip install "torch-fastload[dali] @
    URL"` where it was installed from a file or a repository. The source of each is
    `direct_url.json`, which pip records beside the metadata (PEP 610).
    """
    return f"pip install {'--upgrade ' if upgrade else ''}{_requirement(extra)}"


def _requirement(extra: str) -> str:
    try:
        recorded = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        recorded = None
        if (_SOURCES / "pyproject.toml").is_file():
            return f'-e "{_SOURCES}[{extra}]"'
    if not recorded:
        return f'"{NAME}[{extra}]"'
    origin = json.loads(recorded)
    address = urlsplit(origin["url"])
    path = Path(unquote(address.path))
    if address.scheme == "file" and not path.exists():  # the checkout or the wheel is gone
        return f'"{NAME}[{extra}]"'
    if "dir_info" in origin:
        return f'{"-e " if origin["dir_info"].get("editable") else ""}"{path}[{extra}]"'
    version_control = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    return f'"{NAME}[{extra}] @ {version_control}{origin["url"]}"'
