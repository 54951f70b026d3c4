#!/usr/bin/env bash
# Builds the inner loops and the JPEG decoder for 64-bit ARM, runs them in emulation, and compares what they compute with
# this machine's: JPEGs of every kind, boxes of every alignment, resampling, filters of PNG.
#
#   scripts/test_arm.sh [PYTHON]      (.venv/bin/python)
#
# Needs g++-aarch64-linux-gnu and qemu-user; nothing else for ARM, libjpeg neither.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-.venv/bin/python}
BUILD=build/arm
ARM=${ARM_CXX:-aarch64-linux-gnu-g++}
command -v "$ARM" qemu-aarch64 >/dev/null || { echo "needs: apt-get install g++-aarch64-linux-gnu qemu-user"; exit 2; }

mkdir -p $BUILD/jpegs
"$PYTHON" - $BUILD/jpegs <<'PY'
import sys
from pathlib import Path

from tests.fuzz.make_corpus import seeds

for name, data in seeds().items():
    (Path(sys.argv[1]) / f"{name}.jpg").write_bytes(data[8:])
PY

# build COMPILER OUTPUT -D... NAME=VARIABLE[,FLAG]...
build() {
    local compiler=$1 output=$2 define=$3 objects=() name variable flags
    local options=(-O2 -std=c++17 "$define" -Ifastload/native)
    shift 3
    for kernels in "$@"; do
        IFS=, read -r name variable flags <<<"$kernels"
        objects+=("$output.$name.o")
        # shellcheck disable=SC2086
        "$compiler" "${options[@]}" $flags "-DFASTLOAD_KERNELS=$variable" "-DFASTLOAD_KERNELS_NAME=\"$name\"" \
            -c fastload/native/kernels_target.cpp -o "$output.$name.o"
    done
    "$compiler" "${options[@]}" -static tests/native/kernels.cpp \
        fastload/native/jpeg/{baseline,frame,huffman,points,scans,turns}.cpp "${objects[@]}" -o "$output"
}

PLAIN="plain,kPlainKernels,-DFASTLOAD_SIMD_PORTABLE=1"
build "$ARM" $BUILD/kernels_arm -DFASTLOAD_ARM64 "$PLAIN" neon,kNeonKernels
build "${CXX:-g++}" $BUILD/kernels_here -DFASTLOAD_PORTABLE_ONLY "$PLAIN"
arm=$(qemu-aarch64 $BUILD/kernels_arm $BUILD/jpegs/*.jpg)
here=$($BUILD/kernels_here $BUILD/jpegs/*.jpg)
if [ "$arm" != "$here" ]; then
    echo "ARM computes $arm, this machine $here"
    exit 1
fi
echo "ARM and this machine compute the same: $here"
