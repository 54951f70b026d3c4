"""Refuses a wheel that holds a shared library without the text of its licence: wheel_licences.py
WHEEL"""

from __future__ import annotations

import re
import sys
from zipfile import ZipFile

LICENCES = {
    "libjpeg": "libjpeg-turbo",
    "libisal": "isa-l",
    "libwebp": "libwebp",
    "libsharpyuv": "libwebp",
}
"""Of each shared library that auditwheel may copy into a wheel, the file in `licenses/`."""


def missing_licences(names: list[str]) -> list[str]:
    """Of the files of a wheel: what its shared libraries and its native core lack."""
    found = {
        match[1]
        for name in names
        if (match := re.search(r"\.dist-info/licenses/licenses/([\w-]+)\.txt$", name))
    }
    needed = (
        {"the native core": "nanobind", "nanobind": "robin-map"}
        if any("_core." in name for name in names)
        else {}
    )
    for name in names:
        if match := re.match(r"torch_fastload\.libs/(\w+?)(-[0-9a-f]+)?\.so", name):
            needed[match[1]] = LICENCES.get(match[1], f"(no entry for {match[1]} in {__file__})")
    if not any(name.endswith(".dist-info/licenses/NOTICE") for name in names):
        return ["NOTICE"]
    return [
        f"{library}: licenses/{licence}.txt"
        for library, licence in needed.items()
        if licence not in found
    ]


if __name__ == "__main__":
    with ZipFile(sys.argv[1]) as wheel:
        contents = wheel.namelist()
    lacking = missing_licences(contents)
    if lacking:
        sys.exit(f"{sys.argv[1]} lacks\n  " + "\n  ".join(lacking))
    libraries = sorted(name for name in contents if name.startswith("torch_fastload.libs/"))
    print(f"    with the licences of {', '.join(libraries) or 'what it is made of'}")
