#!/usr/bin/env bash
# Runs the tests that torch and torchdata have for their DataLoaders with fastload in the DataLoader's place, and prints
# how many passed, which did not, and why.
#
#   scripts/foreign_suites.sh [FOLDER]     FOLDER has, or gets, the suites (build/foreign)
#   SUITES="torch" scripts/...             this one alone; KEYWORDS="growing or error" chooses tests, as pytest's -k
#
# FOLDER/torch/test_dataloader.py is taken from Debian's source package of PyTorch, and FOLDER/torchdata/*.py from a
# clone of github.com/meta-pytorch/data (test/stateful_dataloader), unless they are there. None of it is kept here.
# Needs pytest, pytest-timeout, expecttest, torchdata. Takes a quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$(realpath -m "${1:-build/foreign}")
SUITES=${SUITES:-torch torchdata}
PYTHON=${PYTHON:-python}
mkdir -p "$FOLDER/torch" "$FOLDER/torchdata"

from_debian() { # of the newest release that the mirror has
    local pool=${DEBIAN:-http://deb.debian.org/debian}/pool/main/p/pytorch/ archive
    archive=$(curl -fsS "$pool" | grep -o 'pytorch_2[^"<>]*\.orig\.tar\.xz' | sort -uV | tail -1)
    curl -fsS "$pool$archive" | tar -xJ -C "$FOLDER/torch" --strip-components=2 --wildcards '*/test/test_dataloader.py'
}

if [[ $SUITES == *torch* && ! -e $FOLDER/torch/test_dataloader.py ]]; then
    from_debian || { echo "No test_dataloader.py of torch: put one into $FOLDER/torch" >&2; exit 1; }
fi
if [[ $SUITES == *torchdata* && ! -e $FOLDER/torchdata/test_state_dict.py ]]; then
    git clone -q --depth 1 https://github.com/meta-pytorch/data "$FOLDER/clone" &&
        cp "$FOLDER/clone"/test/stateful_dataloader/*.py "$FOLDER/torchdata" ||
        { echo "No suites of torchdata: put test/stateful_dataloader/*.py into $FOLDER/torchdata" >&2; exit 1; }
fi
for suite in $SUITES; do
    "$PYTHON" scripts/foreign_suites.py "$suite" "$FOLDER/$suite" "${KEYWORDS:-}"
done
