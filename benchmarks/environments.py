"""Environments for packages that fastload's own must not have: it would get other versions of what
both need, or a licence that it does not want."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """One that is made where it is not there. It sees the packages of this interpreter, after its
    own."""

    name: str
    packages: tuple[str, ...]
    trial: str  # Python that raises if anything does not work
    system: str = ""  # packages of Debian and Ubuntu that these need
    compiler: str = ""  # for what is built, in place of `cc`

    def python(self, work: Path) -> Path:
        """Its interpreter."""
        return work / self.name / "bin" / "python"

    def make(self, work: Path, say: Callable[[str], None]) -> str:
        """Make it in the folder `work`, if it is not there. Returns why it cannot be had; empty if
        it can."""
        if self._works(work):
            return ""
        say(f"installing {', '.join(self.packages)} into an environment of their own; once")
        folder, python = work / self.name, self.python(work)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder])
        if python.exists():
            add_our_packages(python)
            variables = {**os.environ, **({"CC": self.compiler} if self.compiler else {})}
            install = "-m", "pip", "install", "-q", *self.packages
            subprocess.run([python, *install], env=variables)
        if self._works(work):
            return ""
        needs = f"python3-venv {self.system}".strip()
        reason = f"{self.name} needs: sudo apt-get install -y --no-install-recommends {needs}"
        say(reason)
        return reason

    def _works(self, work: Path) -> bool:
        python = self.python(work)
        if not python.exists():
            return False
        return subprocess.run([python, "-c", self.trial], capture_output=True).returncode == 0


def add_our_packages(python: Path) -> None:
    """Let an environment see the packages of this interpreter, after its own."""
    own = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", own], capture_output=True, text=True, check=True)
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    Path(found.stdout.strip(), "fastload-packages.pth").write_text("\n".join(ours) + "\n")
