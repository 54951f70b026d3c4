#!/usr/bin/env bash
# Sets up a checkout: system packages where this user may install them, a virtual environment, the package itself.
# Called by the Makefile with PYTHON, VENV and EXTRAS. Safe to run again; it installs only what is missing.
set -euo pipefail

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
EXTRAS=${EXTRAS:-dev,dali}

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
[ -t 1 ] || say() { printf '==> %s\n' "$*"; }

# -- 1. The interpreter ------------------------------------------------------------------------------------------------

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    found="not there"
    if command -v "$PYTHON" >/dev/null; then found=$("$PYTHON" --version 2>&1); fi
    echo "fastload needs Python 3.10 or newer; '$PYTHON' is $found. Name another one: make setup PYTHON=python3.12" >&2
    exit 1
fi

# -- 2. System packages ------------------------------------------------------------------------------------------------
# Each is asked for by what it gives, not by name, so that other distributions and hand-made installations count.

missing=()
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
if ! PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep -q 'libturbojpeg\.so\.0'; then
    missing+=(libturbojpeg0)
fi
command -v g++ >/dev/null || command -v c++ >/dev/null || missing+=(g++)
if ! printf '#include <stddef.h>\n#include <stdio.h>\n#include <jpeglib.h>\n' | "${CC:-cc}" -E - >/dev/null 2>&1; then
    missing+=(libjpeg-dev)
fi
# The native core reads PNG and WebP with these.
has_header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E - >/dev/null 2>&1; }
has_header isa-l/igzip_lib.h || missing+=(libisal-dev)
has_header webp/decode.h || missing+=(libwebp-dev)
python_h=$("$PYTHON" -c 'import os, sysconfig; print(os.path.join(sysconfig.get_paths()["include"], "Python.h"))')
[ -f "$python_h" ] || missing+=(python3-dev)
case ",$EXTRAS," in *,dev,*) # for the tests of `fastload bench --html`, which are skipped without
    command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium)
    command -v chromedriver >/dev/null || missing+=(chromium-driver) ;;
esac

ubuntu_names() { # Ubuntu calls Debian's libturbojpeg0 libturbojpeg
    if ! apt-cache show libturbojpeg0 >/dev/null 2>&1 && apt-cache show libturbojpeg >/dev/null 2>&1; then
        missing=("${missing[@]/#libturbojpeg0/libturbojpeg}")
    fi
}

if [ ${#missing[@]} -gt 0 ]; then
    as_root=()
    may_install=no
    if command -v apt-get >/dev/null; then
        if [ "$(id -u)" = 0 ]; then
            may_install=yes
        elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
            may_install=yes
        fi
    fi
    if [ $may_install = yes ]; then
        say "System packages: ${missing[*]}"
        ${as_root[@]+"${as_root[@]}"} apt-get -o DPkg::Lock::Timeout=300 update -qq || true
        ubuntu_names
        for package in "${missing[@]}"; do # one by one: what one lacks must not keep the others away
            ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
                apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$package" >/dev/null \
                || say "$package could not be installed; going on without it"
        done
    else
        ubuntu_names
        say "Not installed, and not mine to install: ${missing[*]}"
        echo "    sudo apt-get install -y ${missing[*]}"
        echo "    Going on without. For full speed run that line, then: make reinstall"
    fi
fi

# -- 3. Virtual environment --------------------------------------------------------------------------------------------

if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    say "Virtual environment in $VENV ($("$PYTHON" --version))"
    rm -rf "$VENV"
    if ! "$PYTHON" -m venv "$VENV" >/dev/null 2>&1; then
        # Debian's Python without python3-venv: another tool that makes environments may be there.
        rm -rf "$VENV"
        "$PYTHON" -m virtualenv -q "$VENV" 2>/dev/null \
            || { "$PYTHON" -m venv --without-pip "$VENV" && "$PYTHON" -m pip -q --python "$VENV/bin/python" install pip; } \
            || {
                rm -rf "$VENV"
                echo "No virtual environment could be made. Run: sudo apt-get install -y python3-venv" >&2
                exit 1
            }
    fi
fi

# -- 4. The package ----------------------------------------------------------------------------------------------------
# torch and torchvision come together from one registry: their builds must match.

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }
without_dali=$(printf '%s' "$EXTRAS" | tr ',' '\n' | grep -vx dali | paste -sd, -)

say "Installing fastload${EXTRAS:+[$EXTRAS]}; the first time, torch and its libraries are several GB"
pip install --quiet --upgrade 'pip>=23.1'
pip uninstall --quiet --yes fastload 2>/dev/null || true # the name of this distribution until version 0.1
if ! pip install --quiet --editable ".${EXTRAS:+[$EXTRAS]}"; then
    # DALI has no build for some machines and Python versions, and the rest of fastload does not need it.
    [ "$without_dali" != "$EXTRAS" ] || exit 1
    say "That failed; trying without the dali backend"
    pip install --quiet --editable ".${without_dali:+[$without_dali]}"
fi

"$VENV/bin/python" -c '
import fastload
from fastload import native
print(f"==> fastload {fastload.__version__} is installed,", "with its native core." if native.available() else
      "without its native core (no compiler or libjpeg headers, or the build failed).\n"
      "    Everything works; JPEG folders load more slowly. To build it:\n"
      "    sudo apt-get install -y g++ libjpeg-dev python3-dev && make reinstall")'
