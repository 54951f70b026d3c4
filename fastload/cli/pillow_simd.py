"""`fastload pillow-simd`: Pillow-SIMD in place of Pillow, in such a way that pip leaves it there.

Packages depend on the distribution `pillow`. Where only `pillow-simd` is installed, the next
`pip install` of such a package brings Pillow, whose files overwrite those of Pillow-SIMD. So a
distribution without files is installed under the name `pillow`; it depends on Pillow-SIMD of the
same version. The Docker image has the same (`docker/pillow`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.terminal import output, plain_errors

_BACK = "pip uninstall -y pillow pillow-simd && pip install pillow"

# Runs in the Python that is looked at, in a process of its own, where metadata are up to date.
_LOOK = """
import json
from importlib import metadata
installed = {"pillow": None, "simd": None, "stub": False, "imported": None}
for one in metadata.distributions():
    name = (one.metadata["Name"] or "").lower().replace("_", "-")
    if name == "pillow":
        installed["pillow"] = one.version
        installed["stub"] = not any(str(file).startswith("PIL/") for file in one.files or ())
    elif name == "pillow-simd":
        installed["simd"] = one.version
try:
    import PIL
    installed["imported"] = PIL.__version__
except Exception:  # whatever a broken Pillow raises: it cannot be imported
    pass
print(json.dumps(installed))
"""


class Installed(NamedTuple):
    """Versions in an environment; None where there is none."""

    pillow: str | None  # the distribution of this name
    simd: str | None
    stub: bool  # the distribution `pillow` has no files of its own
    imported: str | None  # what `import PIL` finds

    @property
    def simd_intact(self) -> bool:
        """Pillow-SIMD is what `import PIL` finds, and no Pillow has put files over it."""
        return (
            self.simd is not None
            and self.imported == self.simd
            and (self.pillow is None or self.stub)
        )

    @property
    def kept(self) -> bool:
        """pip leaves it there."""
        return self.simd_intact and self.stub and self.pillow == self.simd


def pillow_simd(
    wheel: Annotated[
        Path | None,
        typer.Option(help="A wheel of Pillow-SIMD that is built already, instead of building one."),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="The Python of another environment. Without it: the one running this."),
    ] = None,
) -> None:
    """Put Pillow-SIMD in the place of Pillow, so that a later `pip install` leaves it there.

    It is compiled with AVX2, in a minute or two; that needs a network, a C compiler, zlib1g-dev and
    libjpeg-dev. Where Pillow-SIMD is installed already, only the stub is added under the name
    pillow.
    """
    with plain_errors():
        environment = str(python or sys.executable)
        before = look(environment)
        if wheel is None and before.kept:
            output().print(f"Pillow-SIMD {before.simd} is installed, and pip leaves it there.")
            return
        after = install(environment, before, wheel)
        output().print(
            f"Pillow-SIMD {after.simd} is what `import PIL` finds, and pip leaves it there. "
            f"Back to Pillow: {_BACK}",
            soft_wrap=True,
        )


def look(python: str) -> Installed:
    """What the environment of this Python has. Raises ConfigurationError: it does not run."""
    try:
        done = subprocess.run(
            [python, "-c", _LOOK], capture_output=True, text=True, check=True, cwd="/"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        raise ConfigurationError(
            f"--python: {python} does not run ({reason.strip()[-200:]}). Give the path of a "
            "Python, such as venv/bin/python."
        ) from error
    return Installed(**json.loads(done.stdout))


def install(python: str, before: Installed, wheel: Path | None = None) -> Installed:
    """Install Pillow-SIMD, where it is missing or overwritten, and the stub; what is there now.

    Pillow is left as it is until there is a wheel. Raises BackendUnavailableError: this processor
    or environment cannot have it, or pip failed; pip's own words are on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="fastload-pillow-simd-") as folder:
        if wheel is None and not before.simd_intact:
            wheel = build_wheel(python, Path(folder))
        if wheel is not None:
            version = version_of(wheel)
        else:
            assert before.simd is not None
            version = before.simd
        # The stub first: pip removes the files of the Pillow whose place it takes, and would
        # remove those of Pillow-SIMD if they were there already.
        for one in (write_stub(version, Path(folder)), *([wheel] if wheel else ())):
            _pip(
                python,
                ["install", "--no-deps", "--no-index", "--force-reinstall", str(one)],
                f"{one.name} could not be installed. Back to Pillow: {_BACK}",
            )
    after = look(python)
    if not after.kept:
        raise BackendUnavailableError(
            f"`import PIL` finds {after.imported or 'nothing'} instead of Pillow-SIMD {version}: "
            f"another folder comes first in sys.path. Back to Pillow: {_BACK}"
        )
    return after


def build_wheel(python: str, folder: Path) -> Path:
    """A wheel of Pillow-SIMD, compiled here with AVX2."""
    from fastload.machine import simd_extensions

    if platform.machine() != "x86_64" or "avx2" not in simd_extensions():
        raise BackendUnavailableError(
            f"Pillow-SIMD is compiled for x86 processors with AVX2, this is {platform.machine()} "
            f"with {', '.join(simd_extensions()) or 'no vectors'}. Keep Pillow."
        )
    # No cache: a wheel in there may have been compiled without AVX2.
    words = ["wheel", "--no-deps", "--no-cache-dir", "--no-binary", "pillow-simd"]
    _pip(
        python,
        [*words, "--wheel-dir", str(folder), "pillow-simd>=12"],
        "Pillow-SIMD could not be built. It needs a network, a C compiler and headers: sudo "
        "apt-get install -y gcc zlib1g-dev libjpeg-dev python3-dev. Pillow was left as it is.",
        {"CC": f"{os.environ.get('CC', 'cc')} -mavx2"},
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def version_of(wheel: Path) -> str:
    """Of a wheel of Pillow-SIMD, from its name."""
    name, _, rest = wheel.name.partition("-")
    if not wheel.is_file() or wheel.suffix != ".whl" or name.lower() != "pillow_simd":
        raise ConfigurationError(
            f"--wheel: {wheel} is not a wheel of Pillow-SIMD (pillow_simd-VERSION-...whl). Build "
            "one with: pip wheel --no-deps --no-binary pillow-simd pillow-simd"
        )
    return rest.partition("-")[0]


def write_stub(version: str, folder: Path) -> Path:
    """A wheel `pillow` without files, of the version of Pillow-SIMD that it depends on.

    Format: packaging.python.org, "Binary distribution format", version 1.0.
    """
    info = f"pillow-{version}.dist-info"
    files = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: pillow\nVersion: {version}\n"
            "Summary: Stands for Pillow-SIMD, installed in place of Pillow\n"
            f"Requires-Dist: pillow-simd (=={version})\n"
        ),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: fastload\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(text.encode())}\n"
    path = folder / f"pillow-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def _pip(python: str, words: list[str], failed: str, more: dict[str, str] | None = None) -> None:
    """Run pip for that environment; the pip of this one serves an environment without its own."""
    other = [] if python == sys.executable else ["--python", python]
    command = [sys.executable, "-m", "pip", *other, "--disable-pip-version-check", *words]
    done = subprocess.run([*command, "--quiet"], env={**os.environ, **(more or {})}, check=False)
    if done.returncode:
        raise BackendUnavailableError(f"{failed} (pip ended with {done.returncode}; see above)")
