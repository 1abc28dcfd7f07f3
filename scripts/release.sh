#!/usr/bin/env bash
# Builds the files of a release in target/release-files: the Python wheel, an archive of the program, the Debian package,
# and their SHA256SUMS. The program is compiled once, and linked against glibc 2.28 by zig.
#
#     scripts/release.sh        # for this processor: x86-64; aarch64 is untested
#     scripts/release.sh musl   # only the archive, with a static program: untested; needs musl-tools and Rust's musl target
set -euo pipefail
cd "$(dirname "$0")/.."

GLIBC=2.28
libc=${1:-gnu}
machine=$(uname -m)
target=$machine-unknown-linux-$libc
tools=$PWD/target/tools/release
out=$PWD/target/release-files
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
# The same sources give the same files: all carry the time of the last commit, and none contains a path of this host.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
CARGO_ENCODED_RUSTFLAGS=--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo
CARGO_ENCODED_RUSTFLAGS+=$'\x1f'--remap-path-prefix=$(rustc --print sysroot)=rust
CARGO_ENCODED_RUSTFLAGS+=$'\x1f'--remap-path-prefix=$PWD=.
export CARGO_ENCODED_RUSTFLAGS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "error: $*" >&2
    exit 1
}

install_tools() {
    cmp --quiet scripts/requirements-release.txt "$tools/installed" && return
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements-release.txt
    cp scripts/requirements-release.txt "$tools/installed"
}

# Names zig as the compiler and linker of the target. `maturin build --zig` would do the same, but only for the Python
# package: everything it shares with the program would be compiled twice.
use_zig() {
    local tool name=${target//-/_} version
    version=$("$tools/bin/python" -m ziglang version)
    for tool in cc c++ ar; do
        {
            echo '#!/bin/sh'
            echo "export CARGO_ZIGBUILD_ZIG_VERSION=$version CARGO_ZIGBUILD_ZIG_COMMAND='$tools/bin/python'"
            echo "export CARGO_ZIGBUILD_ZIG_COMMAND_ARGS='-m ziglang'"
            printf "exec '%s' zig %s -- " "$tools/bin/maturin" "$tool"
            [ "$tool" = ar ] || printf -- '-g -fno-sanitize=all -target %s-linux-gnu.%s ' "$machine" "$GLIBC"
            echo '"$@"'
        } >"$tools/bin/zig-$tool"
        chmod +x "$tools/bin/zig-$tool"
    done
    export "CC_$name=$tools/bin/zig-cc" "CXX_$name=$tools/bin/zig-c++" "AR_$name=$tools/bin/zig-ar"
    export "CARGO_TARGET_${name^^}_LINKER=$tools/bin/zig-cc"
}

# Fails if FILE uses a symbol of a newer glibc.
check_glibc() {
    local newest
    newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1)
    [ "$(printf '%s\n' "$newest" "GLIBC_$GLIBC" | sort -V | tail -n 1)" = "GLIBC_$GLIBC" ] \
        || fail "$1 needs $newest, and the oldest supported system has $GLIBC"
    echo "$(basename "$1"): newest symbol $newest"
}

# The wheel, with the program as the command `netstage`.
build_wheel() {
    (cd python && "$tools/bin/maturin" build --release --target "$target" \
        --compatibility "manylinux_${GLIBC/./_}" --out "$work/wheel")
    "$tools/bin/wheel" unpack --dest "$work" "$work"/wheel/*.whl >/dev/null
    local tree=$work/netstage-$version
    local data=$tree/netstage-$version.data
    check_glibc "$tree"/netstage/_netstage.abi3.so
    install -D "$work/root/bin/netstage" "$data/scripts/netstage"
    mkdir -p "$data/data/share"
    cp -r "$work/root/share/man" "$data/data/share"
    scripts/licenses.py netstage netstage-python >"$tree/netstage-$version.dist-info/licenses/dependencies.txt"
    sed -i "s#$PWD#.#g" "$tree"/netstage-*.dist-info/sboms/*.json
    "$tools/bin/wheel" pack --dest-dir "$out" "$tree" >/dev/null
    "$tools/bin/twine" --no-color check --strict "$out"/*.whl
}

# The archive: a folder with bin and share, which `tar --strip-components=1` unpacks into /usr/local.
build_archive() {
    local name=netstage-$version-$machine-linux
    [ "$libc" = gnu ] || name+=-$libc
    cp -r "$work/root" "$work/$name"
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        -c "$name" | gzip -9n >"$out/$name.tar.gz"
}

build_deb() {
    local package
    package=$(scripts/deb.sh "$program" "$out")
    lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$package"
    echo "$(basename "$package"): lintian found no error and no warning"
}

rm -rf "$out"
mkdir -p "$out"
if [ "$libc" = gnu ]; then
    install_tools
    use_zig
fi
cargo build --release --locked --target "$target" -p netstage
program=$CARGO_TARGET_DIR/$target/release/netstage
version=$("$program" --version)
version=${version#netstage }
scripts/install.sh "$program" "$work/root"
if [ "$libc" = gnu ]; then
    check_glibc "$work/root/bin/netstage"
    build_wheel
    build_deb
fi
build_archive
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "release files:"
(cd "$out" && du -h --apparent-size -- * | awk '{ printf "  %6s  target/release-files/%s\n", $1, $2 }')
