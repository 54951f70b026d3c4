#!/usr/bin/env bash
# An environment of its own for a peer that brings its own versions of what others need.
#
#     bash benchmarks/peers/environment.sh ffcv|spdl VENV [PYTHON]
#
# Installs nothing outside VENV. Exit status 3: something of the system is missing, and the last line says what.
set -euo pipefail

PEER=$1
VENV=$2
PYTHON=${3:-python3}

case $PEER in
    ffcv) PACKAGES=(ffcv==1.0.2 pillow psutil) TRY='import ffcv, PIL, psutil' ;; # builds from source, needs torch
    spdl) PACKAGES=(spdl psutil) TRY='import psutil, spdl.io.lib; spdl.io.lib._import_libspdl()' ;;
    *) echo "$PEER: none of ffcv, spdl" >&2; exit 2 ;;
esac

works() { [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c "$TRY" 2>/dev/null; }
needs() {
    echo "$PEER needs: sudo apt-get install -y --no-install-recommends $*" >&2
    exit 3
}

if works; then exit 0; fi

if [ "$PEER" = ffcv ]; then
    missing=()
    command -v g++ >/dev/null || missing+=(g++)
    if command -v pkg-config >/dev/null; then
        pkg-config --exists opencv4 || missing+=(libopencv-dev)
        pkg-config --exists libturbojpeg || missing+=(libturbojpeg0-dev)
    else
        missing+=(pkg-config libopencv-dev libturbojpeg0-dev)
    fi
    python_h=$("$PYTHON" -c 'import os, sysconfig; print(os.path.join(sysconfig.get_paths()["include"], "Python.h"))')
    [ -f "$python_h" ] || missing+=(python3-dev)
    [ ${#missing[@]} -eq 0 ] || needs "${missing[@]}"
fi

echo "Installing $PEER into an environment of its own; once (FFCV: several minutes and GB, it depends on torch)"
rm -rf "$VENV"
"$PYTHON" -m venv "$VENV" 2>/dev/null || "$PYTHON" -m virtualenv -q "$VENV"
"$VENV/bin/python" -m pip --disable-pip-version-check install -q "${PACKAGES[@]}"
works || { [ "$PEER" != spdl ] || needs ffmpeg; "$VENV/bin/python" -c "$TRY"; }
