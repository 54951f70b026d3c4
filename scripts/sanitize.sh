#!/usr/bin/env bash
# The native core built with AddressSanitizer and UndefinedBehaviorSanitizer, under the tests given (pytest's arguments).
# usage: scripts/sanitize.sh PYTHON TESTS...
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1"); shift
# pip builds in an environment of its own, so that this one may be without it.
"$python" -c 'import nanobind' 2>/dev/null || "$python" -m pip install --quiet 'nanobind>=2.4'
cmake -S . -B build/sanitize -DPython_EXECUTABLE="$python" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DFASTLOAD_SANITIZE=address,undefined
cmake --build build/sanitize --target _core --parallel 2
# A copy of the package with this core; the finder of the editable install, which knows the other one, is left out.
copy=build/sanitize/package
rm -rf "$copy" && mkdir -p "$copy"
cp -r fastload tests pyproject.toml README.md "$copy/"
rm -f "$copy"/fastload/native/_core*.so && cp build/sanitize/_core*.so "$copy/fastload/native/"
cd "$copy"
# Python is not built with the sanitizer, so its library comes first; what Python keeps until its end are no leaks.
export LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0
exec "$python" -c '
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import pytest
from fastload import native
assert "sanitize" in native.load().__file__, native.load().__file__
sys.exit(pytest.main(sys.argv[1:]))' -n 0 -q "$@"
