"""The native core, built on the spot where it is missing: a bare tree, no network, perhaps no installed headers.

The headers and libraries may come from a folder into which packages were unpacked (`--jpeg-headers`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from fastload import native

__all__ = ["ensure_native"]

ROOT = Path(__file__).resolve().parents[2]
_HEADERS = ("jpeglib.h", "jmorecfg.h", "jerror.h", "jconfig.h")
_BUILD_SECONDS = 240


def ensure_native(headers: Path | None, work: Path) -> str:
    """Build the core beside its sources if it cannot be loaded; says in a line what is the case.

    Args:
        headers: a folder that holds, at any depth, the headers of libjpeg-turbo, perhaps with the library of the same
            package, and perhaps Python's headers. None: those of the system.
        work: where to build.
    """
    if native.available():
        return "there already"
    try:
        built = _build(headers, work)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "output", None) or str(error)
        return f"not built: {' / '.join(str(said).strip().splitlines()[-4:])}"
    if subprocess.run([sys.executable, "-c", "from fastload import native; native.load()"], cwd=ROOT).returncode:
        return f"built, but it cannot be loaded: {built}"
    return f"built on the spot: {built.name}"


def _build(headers: Path | None, work: Path) -> Path:
    folder = work / "native"
    folder.mkdir(parents=True, exist_ok=True)
    options = [f"-DPython_EXECUTABLE={sys.executable}", *_jpeg(headers, folder / "libjpeg"), *_python(headers)]
    environment = {**os.environ, "CXXFLAGS": _include_of(headers)}
    if shutil.which("ninja", path=_path()):
        options += ["-G", "Ninja"]
    cmake = shutil.which("cmake", path=_path())
    if cmake is None:
        raise FileNotFoundError("cmake is not installed: pip install cmake")
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder / "build"), *options],
        [cmake, "--build", str(folder / "build"), "--target", "_core", "--parallel", str(os.cpu_count() or 1)],
    ):
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_SECONDS,
            env={**environment, "PATH": _path()},
        )
    (built,) = (folder / "build").glob("_core*.so")
    target = ROOT / "fastload" / "native" / built.name
    part = target.with_suffix(".part")
    shutil.copyfile(built, part)
    os.replace(part, target)  # a process that has the old one open keeps it
    return target


def _path() -> str:
    """Tools installed beside the interpreter count, too."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _jpeg(headers: Path | None, folder: Path) -> list[str]:
    """CMake's options for libjpeg-turbo: headers and library of one kind, brought together in one folder."""
    if headers is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    for name in _HEADERS:
        found = sorted(headers.rglob(name))
        if not found:
            raise FileNotFoundError(
                f"--jpeg-headers {headers}: there is no {name} in it; unpack libjpeg's -dev package"
            )
        shutil.copyfile(found[0], folder / name)
    version = re.search(r"define\s+JPEG_LIB_VERSION\s+(\d)", (folder / "jconfig.h").read_text())
    # libjpeg.so.62 and libjpeg.so.8 differ in their structures: the headers say which one they are of.
    name = "libjpeg.so.62" if version is not None and version.group(1) == "6" else "libjpeg.so.8"
    library = next((path for path in sorted(headers.rglob(f"{name}*")) if path.is_file()), None) or _of_system(name)
    if library is None:
        raise FileNotFoundError(f"{name}, which the headers in {headers} are of, is neither in it nor on this machine")
    shutil.copyfile(library, folder / name)
    link = folder / "libjpeg.so"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    return [f"-DJPEG_INCLUDE_DIR={folder}", f"-DJPEG_LIBRARY={link}", f"-DJPEG_LIBRARY_RELEASE={link}"]


def _of_system(name: str) -> Path | None:
    listing = subprocess.run(
        ["ldconfig", "-p"], env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}, capture_output=True, text=True
    ).stdout
    paths = [line.split("=>")[-1].strip() for line in listing.splitlines() if line.strip().startswith(f"{name} ")]
    return Path(paths[0]) if paths else None


def _python(headers: Path | None) -> list[str]:
    """CMake's options for Python's headers, where the interpreter has none of its own."""
    own = Path(sysconfig.get_paths()["include"])
    if headers is None or (own / "Python.h").is_file():
        return []
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = next((path for path in headers.rglob("Python.h") if path.parent.name == name), None)
    return [] if found is None else [f"-DPython_INCLUDE_DIR={found.parent}"]


def _include_of(headers: Path | None) -> str:
    """Debian's pyconfig.h includes the machine's own by its path from the folder above."""
    options = [os.environ.get("CXXFLAGS", "")]
    if headers is not None:
        options += [f"-I{path}" for path in sorted(headers.rglob("include")) if path.is_dir()]
    return " ".join(filter(None, options))
