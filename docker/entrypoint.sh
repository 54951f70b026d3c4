#!/bin/sh
# Says what is wrong with the environment, then becomes `fastload "$@"`, or the program that is named: torchrun, bash.
set -eu

# Another user than the image's (--user) may not write to /cache, nor have a home.
if ! { mkdir -p "$TRITON_CACHE_DIR" && [ -w "$TRITON_CACHE_DIR" ]; } 2>/dev/null; then
    TRITON_CACHE_DIR=$(mktemp -d || echo "$TRITON_CACHE_DIR")
    export TRITON_CACHE_DIR
fi
[ "${1:-}" = doctor ] || python -m fastload.cli.environment || true # `doctor` says it itself
if command -v -- "${1:-}" >/dev/null; then
    exec "$@"
fi
exec fastload "$@"
