#!/usr/bin/env bash
# Runs the tests that torch, torchdata, Accelerate and Lightning have for their loaders with fastload in the DataLoader's place, and
# prints how many passed, which did not, and why.
#
#   scripts/foreign_suites.sh [FOLDER]     FOLDER has, or gets, the suites (build/foreign)
#   SUITES="torch" scripts/...             this one alone; KEYWORDS="growing or error" chooses tests, as pytest's -k
#
# FOLDER/torch/test_dataloader.py is taken from Debian's source package of PyTorch, FOLDER/torchdata/*.py from a clone of
# github.com/meta-pytorch/data (test/stateful_dataloader), FOLDER/accelerate/test_data_loader.py from one of
# github.com/huggingface/accelerate, those of Lightning (one folder for Fabric's and the Trainer's) from one of
# github.com/Lightning-AI/pytorch-lightning, unless they are there. None of it is kept here. Another suite: SUITES=name, with its
# test_*.py, conftest.py and helpers in FOLDER/name.
# Needs pytest, pytest-timeout, expecttest, parameterized, torchdata, accelerate, lightning. Takes an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

FOLDER=$(realpath -m "${1:-build/foreign}")
SUITES=${SUITES:-torch torchdata accelerate lightning}
PYTHON=${PYTHON:-python}
mkdir -p "$FOLDER/torch" "$FOLDER/torchdata" "$FOLDER/accelerate" "$FOLDER/lightning"

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

from_lightning() { # TESTS FOLDER
    cp "$1"/tests_pytorch/{conftest,trainer/test_dataloaders,trainer/connectors/test_data_connector}.py "$2"
    cp "$1/tests_pytorch/utilities/test_combined_loader.py" "$2"
    for package in pytorch fabric; do
        cp "$1/tests_$package/utilities/test_data.py" "$2/test_data_$package.py"
        mkdir -p "$2/tests_$package/helpers"
        cp "$1/tests_$package/__init__.py" "$2/tests_$package"
        cp "$1/tests_$package"/helpers/*.py "$2/tests_$package/helpers"
    done
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
if [[ " $SUITES " == *" lightning "* && ! -e $FOLDER/lightning/test_dataloaders.py ]]; then
    git clone -q --depth 1 --branch "${LIGHTNING_TAG:-2.6.5}" https://github.com/Lightning-AI/pytorch-lightning \
        "$FOLDER/clone-lightning" && from_lightning "$FOLDER/clone-lightning/tests" "$FOLDER/lightning" ||
        { echo "No suites of Lightning: put them into $FOLDER/lightning" >&2; exit 1; }
fi
for suite in $SUITES; do
    "$PYTHON" scripts/foreign_suites.py "$suite" "$FOLDER/$suite" "${KEYWORDS:-}"
done
