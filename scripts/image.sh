#!/usr/bin/env bash
# Puts the Debian package PACKAGE into a container image named netstage, by podman or docker, and
# runs a scenario there: simulated, and on real packets. Exits with 4 where that lacks something.
#
# BASE names the image to begin with: this host's own release, since its libraries are what the
# program is linked with. Where no registry gives it, debootstrap makes one of the same packages.
set -euo pipefail
cd "$(dirname "$0")/.."

lacks() {
    echo "no container image was made: $*" >&2
    exit 4
}

package=$1
engine=
for candidate in podman docker; do
    if [ -z "$engine" ] && "$candidate" info >/dev/null 2>&1; then
        engine=$candidate
    fi
done
[ -n "$engine" ] || lacks "it needs podman or docker, and neither works here (apt-get install podman)"

. /etc/os-release
base=${BASE:-docker.io/library/$ID:$VERSION_CODENAME}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$engine" image inspect "$base" >/dev/null 2>&1 && ! "$engine" pull --quiet "$base" >/dev/null; then
    { [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null; } \
        || lacks "$base cannot be had; as root, debootstrap would make one (apt-get install debootstrap)"
    echo "debootstrap makes the base, in place of $base"
    debootstrap --variant=minbase "$VERSION_CODENAME" "$work/base" >/dev/null
    base=localhost/netstage-base
    tar -C "$work/base" --exclude "./var/cache/apt/*" --exclude "./var/lib/apt/lists/*" -c . | "$engine" import - "$base" >/dev/null
fi
"$engine" run --rm "$base" true || lacks "$engine cannot run a container here"
mkdir "$work/context"
cp "$package" packaging/Containerfile "$work/context"
"$engine" build --network host --build-arg BASE="$base" -t netstage "$work/context"

run() {
    "$engine" run --rm --volume "$PWD/scenarios:/work/scenarios:ro" "$@" --out /tmp/record
}
run netstage run scenarios/examples/two-hosts.toml
# 5: this machine was too busy to keep the schedule of real packets.
run --privileged netstage run scenarios/examples/two-hosts.toml --on emu || [ $? -eq 5 ]
