"""The native core, built on the spot where it is missing (a bare tree, no network, perhaps no
installed headers), and what `fastload doctor` says of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.gpu.setting import Found, Setting
from benchmarks.inputs import ROOT
from fastload import native


def run(setting: Setting, found: Found) -> None:
    if native.available():
        found.note("native core: there already")
    else:
        try:
            built = _build(
                Path(setting.jpeg_headers) if setting.jpeg_headers else None,
                Path(setting.kept) / "native",
            )
            _run(sys.executable, "-c", "from fastload import native; native.load()")
            found.note(f"native core: built on the spot, {built.name}")
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "output", None) or str(error)
            found.note(f"native core: not built: {' / '.join(str(said).strip().splitlines()[-4:])}")
    code = subprocess.run([sys.executable, "-m", "fastload", "doctor"], cwd=ROOT).returncode
    found.note(f"fastload doctor: in log.txt, exit status {code}")


def _build(headers: Path | None, folder: Path) -> Path:
    """Build the core and put it beside its sources.

    Args:
        headers: a folder in which packages were unpacked: libjpeg-turbo's library and headers,
            perhaps Python's. None: those of the system.
    """
    options = [f"-DPython_EXECUTABLE={sys.executable}"]
    if headers is not None:
        library = next(iter(sorted(headers.rglob("libjpeg.so"))), None)
        header = next(iter(sorted(headers.rglob("jpeglib.h"))), None)
        if library is None or header is None:
            raise FileNotFoundError(
                f"--jpeg-headers {headers}: unpack libjpeg-turbo's library and its -dev package "
                "there"
            )
        # jconfig.h and pyconfig.h lie in a folder of the machine's own, beside or below the others.
        include = sorted(
            {*headers.rglob("include"), *(path.parent for path in headers.rglob("jconfig.h"))}
        )
        flags = " ".join(
            filter(None, [os.environ.get("CXXFLAGS"), *(f"-I{path}" for path in include)])
        )
        options += [f"-DJPEG_INCLUDE_DIR={header.parent}", f"-DJPEG_LIBRARY_RELEASE={library}"]
        options += [f"-DCMAKE_CXX_FLAGS={flags}"]
        python = Path(sysconfig.get_paths()["include"])
        if not (python / "Python.h").is_file():
            found = [
                path.parent for path in headers.rglob("Python.h") if path.parent.name == python.name
            ]
            options += [f"-DPython_INCLUDE_DIR={path}" for path in found]
    if shutil.which("ninja", path=_path()):
        options += ["-G", "Ninja"]
    _run("cmake", "-S", str(ROOT), "-B", str(folder), *options)
    _run(
        "cmake", "--build", str(folder), "--target", "_core", "--parallel", str(os.cpu_count() or 1)
    )
    (built,) = folder.glob("_core*.so")
    target = ROOT / "fastload" / "native" / built.name
    part = target.with_suffix(".part")
    shutil.copyfile(built, part)
    os.replace(part, target)  # a process that has the old one open keeps it
    return target


def _run(program: str, *arguments: str) -> None:
    """Raises FileNotFoundError: it is not installed; subprocess.SubprocessError with what was
    printed."""
    found = shutil.which(program, path=_path())
    if found is None:
        raise FileNotFoundError(f"{program} is not installed: pip install {program}")
    environment = {**os.environ, "PATH": _path()}
    command = [found, *arguments]
    subprocess.run(
        command,
        check=True,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _path() -> str:
    """Tools installed beside the interpreter count, too."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
