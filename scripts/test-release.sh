#!/usr/bin/env bash
# Installs each release file of FOLDER (target/release-files) in a minimal Debian without a compiler or network, and
# measures the time from its installation to the first report. Fails above 60 s. Needs root and debootstrap.
#
# SUITES names the Debian releases; bullseye has an older glibc (2.31), but no Python that the wheel supports.
set -euo pipefail
cd "$(dirname "$0")/.."

LIMIT_MS=60000
files=$(realpath "${1:-target/release-files}")
store=$PWD/target/release-test
mirror=${MIRROR:-http://deb.debian.org/debian}
root=$store/root
failed=0
[ "$(id -u)" -eq 0 ] || { echo "error: debootstrap and chroot need root" >&2; exit 4; }
mkdir -p "$store"
trap 'rm -rf "$root"' EXIT

# A minimal Debian as an archive, made once.
base() {
    local suite=$1 include=$2
    [ -e "$store/$suite.tar" ] && return
    echo "debootstrap: $suite" >&2
    rm -rf "$root"
    debootstrap --variant=minbase ${include:+--include="$include"} "$suite" "$root" "$mirror" >"$store/$suite.log" \
        || { tail -n 5 "$store/$suite.log" >&2; return 1; }
    tar -C "$root" --exclude './var/cache/apt/*' --exclude './var/lib/apt/lists/*' -cf "$store/$suite.tar.new" .
    mv "$store/$suite.tar.new" "$store/$suite.tar"
}

# Runs a script in the tree, without network.
inside() {
    unshare --mount --net --pid --fork --kill-child chroot "$root" \
        /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        /bin/bash -euc "mount -t proc proc /proc; cd /root; $1"
}

milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

# Installs one file in a fresh tree, runs a scenario, and removes the file again.
measure() {
    local suite=$1 kind=$2 install=$3 command=$4 remove=$5 start middle end glibc result=ok
    rm -rf "$root"
    mkdir "$root"
    tar -C "$root" -xf "$store/$suite.tar"
    mkdir "$root/files"
    cp -r "$files"/. "$root/files"
    [ "$kind" != wheel ] || cp -r "$store/wheels" "$root/files/wheels"
    cp scenarios/examples/two-hosts.toml "$root/root"
    inside '! command -v cc gcc clang cargo' >/dev/null || { echo "error: $suite contains a compiler" >&2; exit 1; }
    glibc=$(inside 'ldd --version' | sed -n '1s/.* //p')
    start=$(milliseconds)
    inside "$install" >"$store/log" 2>&1 || result="installation failed"
    middle=$(milliseconds)
    if [ "$result" = ok ]; then
        inside "$command run two-hosts.toml" >>"$store/log" 2>&1 || result="run failed"
    fi
    end=$(milliseconds)
    [ -s "$root/root/out/two-hosts/report.html" ] || result="no report"
    if [ "$result" = ok ]; then
        inside "netstage --version && $remove && hash -r && ! command -v netstage" >>"$store/log" 2>&1 || result="removal failed"
    fi
    [ $((end - start)) -le "$LIMIT_MS" ] || result="above $((LIMIT_MS / 1000)) s"
    awk -v suite="$suite" -v glibc="$glibc" -v kind="$kind" -v a="$((middle - start))" -v b="$((end - middle))" -v result="$result" \
        'BEGIN { printf "%-10s %-6s %-8s %10.1f %10.1f %10.1f  %s\n", suite, glibc, kind, a / 1000, b / 1000, (a + b) / 1000, result }'
    if [ "$result" != ok ]; then
        tail -n 20 "$store/log" >&2
        failed=1
    fi
}

base bookworm python3-venv
# What the wheel depends on, fetched before the measurement for the Python of that Debian.
if [ ! -e "$store/wheels/complete" ]; then
    python3 -m venv "$store/venv"
    "$store/venv/bin/pip" download --quiet --disable-pip-version-check --dest "$store/wheels" --only-binary :all: \
        --python-version 3.11 --platform "manylinux_2_28_$(uname -m)" --platform "manylinux2014_$(uname -m)" \
        "$files"/*.whl
    rm "$store"/wheels/netstage-*.whl
    touch "$store/wheels/complete"
fi

printf '%-10s %-6s %-8s %10s %10s %10s\n' debian glibc file 'install, s' 'report, s' 'total, s'
for suite in ${SUITES:-bookworm bullseye}; do
    base "$suite" "" || { echo "$suite: skipped, its packages are not available"; continue; }
    if [ "$suite" = bookworm ]; then
        # `python -m netstage` reports, `netstage` answers as a command, and the module is imported.
        measure "$suite" wheel \
            'python3 -m venv netstage; netstage/bin/pip install --no-index --find-links /files/wheels /files/*.whl
             ln -s /root/netstage/bin/netstage /usr/local/bin/netstage' \
            'netstage/bin/python -c "import netstage; netstage.Scenario.load(\"two-hosts.toml\").check()"
             netstage/bin/python -m netstage' \
            'netstage/bin/pip uninstall --yes netstage && [ ! -e netstage/bin/netstage ]'
    fi
    measure "$suite" archive \
        "tar -C /usr/local --strip-components=1 -xf /files/netstage-*.tar.gz" \
        netstage \
        'rm -r /usr/local/bin/netstage /usr/local/share/doc/netstage'
    measure "$suite" deb \
        'dpkg --install /files/*.deb' \
        netstage \
        'dpkg --purge netstage && [ ! -e /usr/share/doc/netstage ] && [ ! -e /var/lib/netstage ]'
done
exit "$failed"
