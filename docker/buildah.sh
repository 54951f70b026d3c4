# shellcheck shell=bash disable=SC2034,SC2154
# `build`, `start`, `run` and `size` without a Docker engine, for verify.sh: Debian's buildah, in a chroot and as root,
# on a base that debootstrap makes. The machine's apt and pip configuration and its certificates serve the build; of
# these only the certificates stay, in the base.
# Reads: $work (a folder to work in), $image (name of the image), $STORAGE_DRIVER.

[ "$(id -u)" = 0 ] || die "no Docker or Podman engine answers, and building without one needs root"
for program in buildah debootstrap; do
    command -v "$program" >/dev/null \
        || die "no Docker or Podman engine answers; to build without one: apt-get install -y buildah debootstrap"
done

release=$(sed -n 's/^ARG BASE=debian:\([a-z]*\)-slim$/\1/p' docker/Dockerfile)
base=localhost/fastload-base:$release
driver=${STORAGE_DRIVER:-overlay}
container=
entrypoint=()

mkdir -p "$work/tmp"
# A chroot has the machine's network, and its own name must be known there.
printf '127.0.0.1 localhost fastload\n' >"$work/hosts"

# TMPDIR is also where it keeps the caches of RUN --mount=type=cache.
storage() {
    tool=(env "TMPDIR=$work/tmp" buildah --storage-driver "$driver")
    tool+=(--root "$work/storage-$driver" --runroot "$work/run-$driver")
}
storage
buildah() { "${tool[@]}" "$@"; }

works() { # a file system that is an overlay itself carries no other
    local scratch
    scratch=$(buildah from scratch 2>/dev/null) || return 1
    buildah mount "$scratch" >/dev/null 2>&1
    local status=$?
    buildah rm "$scratch" >/dev/null
    return $status
}
if [ -z "${STORAGE_DRIVER:-}" ] && ! works; then
    driver=vfs
    storage
fi

make_base() {
    local scratch root mirror
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | sed 's/#.*//' \
        | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 || true)
    scratch=$(buildah from scratch)
    root=$(buildah mount "$scratch")
    debootstrap --variant=minbase --include=ca-certificates "$release" "$root" "${mirror:-http://deb.debian.org/debian}"
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    env -u TMPDIR chroot "$root" update-ca-certificates
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd bash "$scratch"
    buildah umount "$scratch"
    buildah commit --quiet --disable-compression --rm "$scratch" "$base"
}

pip_configuration() { # pip's files and variables as one file; prints the folders that they name
    python3 -m pip config list | python3 -c '
import ast, collections, os, re, sys

sections = collections.defaultdict(dict)
for line in sys.stdin:
    name, _, value = line.rstrip("\n").partition("=")
    section, _, key = name.rpartition(".")
    sections["global" if section == ":env:" else section][key] = ast.literal_eval(value)
folders = set()
with open(sys.argv[1], "w") as file:
    for section, settings in sections.items():
        print(f"[{section}]", file=file)
        for key, value in settings.items():
            print(key, "=", value.strip().replace("\n", "\n    "), file=file)
            folders.update(re.findall(r"(?:^|[ \n]|file://)(/\S+)", value))
# A local index, .../simple, refers to files beside it.
folders = {os.path.dirname(folder) if os.path.basename(folder) == "simple" else folder for folder in folders}
print(*sorted(folder for folder in folders if os.path.isdir(folder)), sep="\n")
' "$work/pip.conf"
}

build() {
    local options=(--volume "$work/pip.conf:/etc/pip.conf:ro")
    local folder
    for folder in $(pip_configuration); do options+=(--volume "$folder:$folder:ro"); done
    if grep -q "^VERSION_CODENAME=$release" /etc/os-release; then options+=(--volume /etc/apt:/etc/apt:ro); fi
    buildah inspect --type image "$base" >/dev/null 2>&1 || make_base
    # Layers are kept for the next build, unless each would be a copy of the whole.
    if [ "$driver" = vfs ]; then options+=(--layers=false); else options+=(--layers=true); fi
    # --format docker: the other one has no HEALTHCHECK.
    buildah build --format docker --isolation chroot --network host --disable-compression \
        --build-arg "BASE=$base" "${options[@]}" "$@" .
}

start() {
    container=$(buildah from "$image")
    mapfile -t entrypoint < <(buildah inspect --type image "$image" \
        | python3 -c 'import json, sys; print(*json.load(sys.stdin)["Docker"]["config"]["Entrypoint"], sep="\n")')
}

run() { # run OPTION... -- ARGUMENT...
    # buildah leaves the entry point out, tini is not process 1, and /dev/shm is the machine's: so another one there,
    # in a mount namespace of its own.
    local options=(--isolation chroot --hostname fastload --no-hosts --volume "$work/hosts:/etc/hosts:ro")
    options+=(--env TINI_SUBREAPER=1)
    local around=()
    while [ "$1" != -- ]; do
        # shellcheck disable=SC2016
        case $1 in
            --shm-size=*)
                around=(unshare --mount sh -c 'mount -t tmpfs -o "size=$0" fastload /dev/shm && exec "$@"' "${1#*=}")
                ;;
            *) options+=("$1") ;;
        esac
        shift
    done
    "${around[@]}" "${tool[@]}" run "${options[@]}" "$container" -- "${entrypoint[@]}" "${@:2}"
}

size() {
    buildah images --json "$image" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["size"])'
}

stop() {
    if [ -n "$container" ]; then buildah rm "$container" >/dev/null; fi
}
trap stop EXIT
