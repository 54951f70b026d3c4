#!/bin/sh
# Says what is wrong with the environment, then becomes `fastload "$@"`, or the program that is named: torchrun, bash.
set -eu

[ "${1:-}" = doctor ] || python -m fastload.cli.environment || true # `doctor` says it itself
if command -v -- "${1:-}" >/dev/null; then
    exec "$@"
fi
exec fastload "$@"
