#!/usr/bin/env bash
# Runs the tests that torch, torchdata and Accelerate have for their loaders with fastload in the DataLoader's place, and
# prints how many passed, which did not, and why.
#
#   scripts/foreign_suites.sh [FOLDER]     FOLDER has, or gets, the suites (build/foreign)
#   SUITES="torch" scripts/...             this one alone; KEYWORDS="growing or error" chooses tests, as pytest's -k
#
# FOLDER/torch/test_dataloader.py is taken from Debian's source package of PyTorch, FOLDER/torchdata/*.py from a clone of
# github.com/meta-pytorch/data (test/stateful_dataloader), FOLDER/accelerate/test_data_loader.py from one of
# github.com/huggingface/accelerate, unless they are there. None of it is kept here. Another suite: SUITES=name, with its
# test_*.py, conftest.py and helpers in FOLDER/name.
# Needs pytest, pytest-timeout, expecttest, parameterized, torchdata, accelerate. Takes half an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$(realpath -m "${1:-build/foreign}")
SUITES=${SUITES:-torch torchdata accelerate}
PYTHON=${PYTHON:-python}
mkdir -p "$FOLDER/torch" "$FOLDER/torchdata" "$FOLDER/accelerate"

from_debian() { # through apt, with lists of its own
    local apt=$FOLDER/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian" \
        "${DEBIAN_RELEASE:-trixie} main" >"$apt/sources.list"
    local options=(-qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache")
    apt-get "${options[@]}" update
    (cd "$apt" && apt-get "${options[@]}" source --download-only pytorch)
    tar -C "$FOLDER/torch" --strip-components=2 -xf "$apt"/pytorch_*.orig.tar.xz --wildcards '*/test/test_dataloader.py'
}

if [[ " $SUITES " == *" torch "* && ! -e $FOLDER/torch/test_dataloader.py ]]; then
    from_debian || { echo "No test_dataloader.py of torch: put one into $FOLDER/torch" >&2; exit 1; }
fi
if [[ " $SUITES " == *" torchdata "* && ! -e $FOLDER/torchdata/test_state_dict.py ]]; then
    git clone -q --depth 1 https://github.com/meta-pytorch/data "$FOLDER/clone" &&
        cp "$FOLDER/clone"/test/stateful_dataloader/*.py "$FOLDER/torchdata" ||
        { echo "No suites of torchdata: put test/stateful_dataloader/*.py into $FOLDER/torchdata" >&2; exit 1; }
fi
if [[ " $SUITES " == *" accelerate "* && ! -e $FOLDER/accelerate/test_data_loader.py ]]; then
    git clone -q --depth 1 https://github.com/huggingface/accelerate "$FOLDER/clone-accelerate" &&
        cp "$FOLDER/clone-accelerate/tests/test_data_loader.py" "$FOLDER/accelerate" ||
        { echo "No suite of Accelerate: put tests/test_data_loader.py into $FOLDER/accelerate" >&2; exit 1; }
fi
for suite in $SUITES; do
    "$PYTHON" scripts/foreign_suites.py "$suite" "$FOLDER/$suite" "${KEYWORDS:-}"
done
