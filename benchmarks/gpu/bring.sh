#!/bin/bash
# What a GPU machine without network needs: bash benchmarks/gpu/bring.sh FOLDER [PHOTOS]
#
# FOLDER/base has packages for Python 3.12, libjpeg-turbo and its headers, and the photographs of
# the class folders PHOTOS. FOLDER/dali.0, dali.1, ... have DALI in pieces. Run it where there is a
# network, with a Python that has pip, on Debian or Ubuntu.
set -euo pipefail
[ $# -ge 1 ] || { echo "bring.sh: give the folder to make, and perhaps one of photographs" >&2; exit 2; }
mkdir -p "$1/base/wheels" "$1/base/debs"
folder=$(cd "$1" && pwd)
photos=${2:-}
piece=${PIECE:-52M} # with the checkout below 64 MiB a call
python=${PYTHON:-python3}

platforms=()
for platform in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${platform}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
fetch() { # FOLDER PACKAGES
    local where=$1
    shift
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp "${platforms[@]}" --dest "$where" "$@"
}

# The machine has torch, torchvision, numpy, filelock, psutil, typer, rich, nvidia-ml-py, pytest,
# hypothesis, nanobind, cmake, ninja, timm and matplotlib.
fetch "$folder/base/wheels" msgspec simplejpeg spdl spdl_core spdl_io
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder/base/wheels" "PyTurboJPEG<2"
# libisal2 is for a core that was built where it is, and travels with the checkout.
packages="libjpeg62-turbo libjpeg62-turbo-dev libturbojpeg0 libisal2"
apt-cache show libjpeg62-turbo >/dev/null 2>&1 || packages="libjpeg-turbo8 libjpeg-turbo8-dev libturbojpeg libisal2"
# shellcheck disable=SC2086 # several words
(cd "$folder/base/debs" && apt-get download --quiet $packages)
[ -z "$photos" ] || tar -C "$photos" -chf "$folder/base/photos.tar" .

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
fetch "$wheels" nvidia-dali-cuda130 nvidia-nvimgcodec-cu13 nvidia-nvjpeg nvidia-libnvcomp-cu13==5.3.0.16 \
    astunparse "gast<=0.7.0" optree nvtx makefun "libcst~=1.8" six
rm -rf "$folder"/dali.*
tar -C "$wheels" -cf - . | split -b "$piece" -d -a 1 - "$folder/piece."
count=0
for part in "$folder"/piece.*; do
    mkdir "$folder/dali.$count"
    mv "$part" "$folder/dali.$count/"
    count=$((count + 1))
done
echo "$count" >"$folder/base/dali-pieces"
du -sh "$folder"/*
