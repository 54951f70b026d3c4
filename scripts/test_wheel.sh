#!/usr/bin/env bash
# Runs the quick tests on a wheel: in a folder that has the tests, the manual and all else of this checkout but `fastload/`, so
# that the wheel is what is imported.
#
#   scripts/test_wheel.sh PYTHON WHEEL [PYTEST OPTIONS]      (installs torch and torchvision, several GB)
#   ENV=folder scripts/test_wheel.sh ...                     in an environment that is there and has the wheel
#
# What the tests use beside pytest is installed where it has a wheel for this Python; tests of the rest are skipped.
set -euo pipefail

python=$1
wheel=$(readlink -f "$2")
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

env=${ENV:-$work/env}
if [ -z "${ENV:-}" ]; then
    "$python" -m venv "$env"
    pip() { "$env/bin/python" -m pip --disable-pip-version-check -q "$@"; }
    pip install "$wheel" 'pytest>=8.2' 'pytest-timeout>=2.3' 'pytest-xdist>=3.6' 'hypothesis>=6.100' pyyaml
    for package in simplejpeg opencv-python-headless pyarrow pycocotools h5py lmdb obstore fsspec tifffile matplotlib pandas \
        safetensors timm 'albumentations>=2.0.8,<2.1'; do
        pip install --only-binary :all: "$package" 2>/dev/null || echo "    no wheel of $package for this Python"
    done
fi

cd "$(dirname "$0")/.."
git ls-files -z | grep -zv '^fastload/' | xargs -0 tar -cf - | tar -xf - -C "$work"
cd "$work"
# Without the GIL where Python is built so: an import (torchvision's, of Triton) would switch it on.
if "$env/bin/python" -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))'; then export PYTHON_GIL=0; fi
"$env/bin/python" -c 'import fastload, sys; print("    the tests run on", fastload.__file__); sys.exit("/site-packages/" not in fastload.__file__)'
# Left out: files whose tests read the sources, and reliability, whole and slow ones.
of_sources=()
for file in architecture distribution docs mirror plain_words; do of_sources+=(--ignore "tests/test_$file.py"); done
# Forks of one process that has read the tests, as in the Makefile; not where there is a GPU.
processes=(-p tests.forks --forks "${WORKERS:-2}")
if [ -e /dev/nvidiactl ]; then processes=(-n "${WORKERS:-2}" --dist worksteal); fi
# A file of tests that imports what could not be installed is an error that is named, and the others run.
"$env/bin/python" -m pytest -q --continue-on-collection-errors "${processes[@]}" -p no:cacheprovider --ignore tests/reliability "${of_sources[@]}" \
    -m "not slow and not whole and not reliability" "$@"
