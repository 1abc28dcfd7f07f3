#!/usr/bin/env bash
# Compiles the kernel programs in bpf/ (build), or checks that the committed objects match their sources (verify).
# The objects are committed, so that building netstage needs no clang.
set -euo pipefail
cd "$(dirname "$0")/.."

CLANG=${CLANG:-clang-14}
STRIP=${STRIP:-llvm-strip-14}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

for source in bpf/*.bpf.c; do
    object=$(basename "${source%.c}").o
    "$CLANG" -O2 -g -target bpf -Wall -Wextra -Werror "-ffile-prefix-map=$PWD=." -c "$source" -o "$folder/$object"
    "$STRIP" --strip-debug "$folder/$object"
    case "${1:-build}" in
        build) cp "$folder/$object" "bpf/$object" ;;
        verify)
            if ! cmp --quiet "$folder/$object" "bpf/$object"; then
                echo "error: bpf/$object does not match its source; run make bpf" >&2
                exit 1
            fi ;;
        *) echo "usage: $0 build|verify" >&2; exit 2 ;;
    esac
done
