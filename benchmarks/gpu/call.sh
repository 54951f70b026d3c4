#!/bin/bash
# One call of a lease: bash benchmarks/gpu/call.sh CALL BROUGHT OUT [OPTIONS of run.py]
#
# CALL is one of run.py's (1.1 to 3.2), or "keep", which keeps what was brought and ends. BROUGHT is
# a folder that bring.sh made, or what of it was carried this time: all of it is kept in KEEP, so
# that pieces may come with several calls. Several calls may run side by side: one installs, the
# others wait for it. OUT gets one archive, CALL.tar.gz, written again after each part; a second one
# of the same CALL is CALL.2.tar.gz. Needs no network.
set -euo pipefail
[ $# -ge 3 ] || { echo "call.sh: give CALL, BROUGHT and OUT" >&2; exit 2; }
call=$1 brought=$2 out=$3
shift 3
keep=${KEEP:-/tmp/fastload-gpu}
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
mkdir -p "$keep/brought" "$keep/headers" "$keep/site" "$keep/work" "$out"
exec 9>"$keep/lock"
flock 9 # until all is installed
[ ! -d "$brought" ] || cp -rn "$brought/." "$keep/brought/"
[ "$call" != keep ] || { ls "$keep/brought"; exit 0; }

install() { # WHEELS
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$keep/site" "$@"
}
base="$keep/brought/base"
if [ ! -e "$keep/base-done" ]; then
    install "$base"/wheels/*.whl
    for package in "$base"/debs/*.deb; do dpkg -x "$package" "$keep/headers"; done
    [ ! -e "$base/photos.tar" ] || { mkdir -p "$keep/photos" && tar -C "$keep/photos" -xf "$base/photos.tar"; }
    touch "$keep/base-done"
fi
if [ ! -e "$keep/dali-done" ]; then
    pieces=("$keep"/brought/dali.*/piece.*)
    if [ "${#pieces[@]}" = "$(cat "$base/dali-pieces" 2>/dev/null)" ]; then
        mkdir -p "$keep/dali"
        cat "${pieces[@]}" | tar -C "$keep/dali" -xf -
        install "$keep"/dali/*.whl
        rm -rf "$keep/dali"
        touch "$keep/dali-done"
    else
        echo "call.sh: DALI is not complete; what needs it will be said to be unavailable" >&2
    fi
fi
libraries=$(dirname "$(find "$keep/headers" -name 'libturbojpeg.so.0' | head -n 1)")
export PYTHONPATH="$keep/site" LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
name=$call number=1
until mkdir "$keep/out.$name" 2>/dev/null; do
    number=$((number + 1))
    name=$call.$number
done
exec 9>&-
photos=()
[ ! -d "$keep/photos" ] || photos=(--photos "$keep/photos")
exec "$python" -m benchmarks.gpu.run --call "$call" --out "$keep/out.$name" \
    --archive "$out/$name.tar.gz" "${photos[@]}" --jpeg-headers "$keep/headers" --work "$keep/work" "$@"
