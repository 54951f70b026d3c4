#!/usr/bin/env bash
# Installs a wheel of fastload as a machine without compiler and libjpeg would, and decodes with its native core there.
#
#   scripts/try_wheel.sh PYTHON WHEEL      (installs torch and torchvision, several GB)
#
# What is hidden: compilers (an empty PATH but for the interpreter's own folder) and, where mount namespaces may be made,
# the system's libjpeg and libturbojpeg.
set -euo pipefail

python=$1
wheel=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/env"
env -u CC -u CXX PATH="$work/env/bin" "$work/env/bin/python" -m pip --disable-pip-version-check -q install "$wheel"

cp "$(dirname "$0")/first_batch.py" "$work/try.py"

hide='for f in $(ls /usr/lib/*/libjpeg.so* /usr/lib/*/libturbojpeg.so* /usr/lib/*/libisal.so* /usr/lib/*/libwebp.so* /usr/lib64/libjpeg.so* /usr/lib64/libturbojpeg.so* 2>/dev/null); do mount --bind /dev/null "$(readlink -f "$f")"; done'
if unshare -m true 2>/dev/null; then
    unshare -m sh -c "$hide; cd '$work' && exec env -i HOME='$work' PATH='$work/env/bin' '$work/env/bin/python' try.py"
else
    (cd "$work" && env -i HOME="$work" PATH="$work/env/bin" "$work/env/bin/python" try.py)
fi
