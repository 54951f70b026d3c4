#!/usr/bin/env bash
# fetch_corpora.sh FOLDER: collections of odd, damaged and hostile images that other projects test with, for `make
# corpora CORPORA=FOLDER`. Some 7,000 files, 250 MB; nothing of them is part of fastload. Licences are those of each.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/fetch_corpora.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
cd "$1"

fetch() { # NAME URL: the files of a repository's newest commit, without its history
  if [ -d "$1" ]; then
    echo "$1: there already"
    return
  fi
  echo "$1: $2"
  rm -rf "$1.part"
  git clone --quiet --depth 1 "$2" "$1.part"
  rm -rf "$1.part/.git"
  mv "$1.part" "$1"
}

command -v git-lfs >/dev/null || echo "git-lfs is not installed: of DALI_extra there will be pointers only" >&2
fetch seed-corpora https://github.com/libjpeg-turbo/seed-corpora
fetch libjpeg-turbo https://github.com/libjpeg-turbo/libjpeg-turbo
fetch Pillow https://github.com/python-pillow/Pillow
fetch image https://github.com/image-rs/image
fetch zune-image https://github.com/etemesi254/zune-image
fetch DALI_extra https://github.com/NVIDIA/DALI_extra
