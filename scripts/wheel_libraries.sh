#!/usr/bin/env bash
# Builds the libraries that a wheel brings, as shared ones: libjpeg-turbo, ISA-L and libwebp, from the sources whose hashes are
# below, by the compiler that CC names.
#
#   scripts/wheel_libraries.sh MACHINE FOLDER      MACHINE: x86_64 or aarch64. FOLDER gets include/ and lib/
#   SOURCES=folder scripts/wheel_libraries.sh ...  the archives are there, or are kept there
#
# Needs cmake, ninja, make, curl and, for x86-64, nasm: the inner loops of libjpeg-turbo and ISA-L are in its language. CMAKE names
# options of a cross build. The archives are Debian's copies of the releases, of a day at which Debian had them.
set -euo pipefail

machine=$1
mkdir -p "$2"
prefix=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sources=${SOURCES:-$work}
mkdir -p "$sources"

MIRRORS="https://deb.debian.org/debian https://snapshot.debian.org/archive/debian/20261129T000000Z"

# unpack PATH SHA256 FOLDER
unpack() {
    local archive
    archive=$sources/$(basename "$1")
    if [ ! -f "$archive" ]; then
        for mirror in $MIRRORS; do curl -sSfL --retry 2 -o "$archive" "$mirror/pool/main/$1" && break; done
    fi
    echo "$2  $archive" | sha256sum --check --quiet
    mkdir -p "$work/$3"
    tar -xzf "$archive" -C "$work/$3" --strip-components 1
}

unpack libj/libjpeg-turbo/libjpeg-turbo_3.1.3.orig.tar.gz 3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5 jpeg
unpack libi/libisal/libisal_2.31.1.orig.tar.gz e1d5573a4019738243b568ab1e1422e6ab7557c5cae33cc8686944d327ad6bb4 isal
unpack libw/libwebp/libwebp_1.6.0.orig.tar.gz e4ab7009bf0629fd11982d4c2aa83964cf244cffba7347ecd39019a9e38c4564 webp

# build NAME OPTIONS...: with cmake
build() {
    local name=$1
    shift
    # shellcheck disable=SC2086
    cmake -S "$work/$name" -B "$work/$name-build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
        -DBUILD_SHARED_LIBS=ON ${CMAKE:-} "$@" >"$work/log" 2>&1 \
        && cmake --build "$work/$name-build" --parallel "${JOBS:-1}" >>"$work/log" 2>&1 \
        && cmake --install "$work/$name-build" >>"$work/log" 2>&1 \
        || { tail -40 "$work/log" >&2; exit 1; }
}

build jpeg -DENABLE_STATIC=OFF -DREQUIRE_SIMD=ON -DWITH_TURBOJPEG=OFF -DWITH_TOOLS=OFF -DWITH_TESTS=OFF -DCMAKE_POLICY_VERSION_MINIMUM=3.5
build webp -DWEBP_BUILD_ANIM_UTILS=OFF -DWEBP_BUILD_CWEBP=OFF -DWEBP_BUILD_DWEBP=OFF -DWEBP_BUILD_GIF2WEBP=OFF -DWEBP_BUILD_IMG2WEBP=OFF \
    -DWEBP_BUILD_VWEBP=OFF -DWEBP_BUILD_WEBPINFO=OFF -DWEBP_BUILD_WEBPMUX=OFF -DWEBP_BUILD_EXTRAS=OFF -DWEBP_BUILD_LIBWEBPMUX=OFF

# ISA-L by its plain makefile, beside which the one of autotools stands; of it what inflates. The link's own options are for GNU's
# linker of one machine.
(
    cd "$work/isal"
    # The table of Adler-32 for ARM is 32 bytes in a section of constants of 16, which LLVM's linker sorts and merges one by one:
    # the checksums were wrong, and each PNG was refused.
    sed -i 's/\.section[[:space:]]*\.rodata\.cst16,"aM",@progbits,16/.section .rodata,"a",@progbits/' igzip/aarch64/igzip_isal_adler32_neon.S
    grep -q '\.section \.rodata,"a",@progbits' igzip/aarch64/igzip_isal_adler32_neon.S
    case $machine in aarch64) host=(host_cpu=aarch64 arch=aarch64) ;; *) host=(host_cpu=x86_64) ;; esac
    make -f Makefile.unx units="igzip crc" "${host[@]}" CC="${CC:-cc}" LDFLAGS="-Wl,-soname,libisal.so.2 ${LDFLAGS:-}" -j "${JOBS:-1}" bin/libisal.so \
        >"$work/log" 2>&1 || { tail -40 "$work/log" >&2; exit 1; }
    mkdir -p "$prefix/include/isa-l"
    cp include/*.h "$prefix/include/isa-l/"
    cp bin/libisal.so "$prefix/lib/libisal.so.2"
    ln -sf libisal.so.2 "$prefix/lib/libisal.so"
)
ls "$prefix/lib"
