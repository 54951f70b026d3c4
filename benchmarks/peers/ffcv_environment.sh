#!/usr/bin/env bash
# An environment of its own for FFCV, which builds from source and brings its own versions of torch and OpenCV.
#
#     bash benchmarks/peers/ffcv_environment.sh VENV [PYTHON]
#
# Installs nothing outside VENV. Exit status 3: something of the system is missing, and the last line says what.
set -euo pipefail

VENV=$1
PYTHON=${2:-python3}

if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import ffcv, PIL, psutil' 2>/dev/null; then exit 0; fi

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
if [ ${#missing[@]} -gt 0 ]; then
    echo "FFCV needs: sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 3
fi

echo "Installing FFCV into an environment of its own; once, several minutes and GB (it depends on torch)"
rm -rf "$VENV"
"$PYTHON" -m venv "$VENV" 2>/dev/null || "$PYTHON" -m virtualenv -q "$VENV"
"$VENV/bin/python" -m pip --disable-pip-version-check install -q 'ffcv==1.0.2' pillow psutil
"$VENV/bin/python" -c 'import ffcv, PIL, psutil'
