"""The distribution that fastload was installed as, and the command that installs one of its
extras."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

# The import name and the command are `fastload`, which the package index has as another project.
# The index has none of this name yet: a command without an address would install whatever somebody
# else puts there.
NAME = "torch-fastload"

# The folder that `fastload` is imported from: site-packages, or a checkout.
_SOURCES = Path(__file__).resolve().parents[1]


def install_command(extra: str, *, upgrade: bool = False) -> str:
    """The command that installs `extra` the way fastload itself was installed.

    `pip install -e "/home/me/fastload[dali]"` where it was installed from a checkout (without `-e`
    where that was not editable), or is run from one without installation; `pip install
    "torch-fastload[dali] @ URL"` where it was installed from a file or a repository. Where the
    place is not known, or is gone: the packages of the extra by their own names, `pip install
    "nvidia-dali-cuda120>=2.4"`. The source of each is the metadata, with `direct_url.json`, which
    pip records beside it (PEP 610).
    """
    return f"pip install {'--upgrade ' if upgrade else ''}{_requirement(extra)}"


def _requirement(extra: str) -> str:
    try:
        installed = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        if (_SOURCES / "pyproject.toml").is_file():
            return f'-e "{_SOURCES}[{extra}]"'
        return f'".[{extra}]" in a checkout of fastload'
    recorded = installed.read_text("direct_url.json")
    return (recorded and _at(json.loads(recorded), extra)) or _packages(installed, extra)


def _at(origin: dict[str, Any], extra: str) -> str | None:
    """The requirement at the place of PEP 610; None: it is gone."""
    address = urlsplit(origin["url"])
    path = Path(unquote(address.path))
    if address.scheme == "file" and not path.exists():
        return None
    if "dir_info" in origin:
        return f'{"-e " if origin["dir_info"].get("editable") else ""}"{path}[{extra}]"'
    version_control = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    return f'"{NAME}[{extra}] @ {version_control}{origin["url"]}"'


def _packages(installed: metadata.Distribution, extra: str) -> str:
    """What the extra consists of, each as pip takes it."""
    named = [requirement.partition(";") for requirement in installed.requires or ()]
    asked = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    return " ".join(f'"{package.strip()}"' for package, _, marker in named if asked.search(marker))
