#!/usr/bin/env bash
# Builds the container image netstage from the Debian package PACKAGE with podman or docker, then runs a scenario in it,
# in the simulator and with real packets. Exits with 4 if the host lacks a requirement.
#
# BASE is the base image. The default is this host's release, because the program is linked against its libraries. If no
# registry provides it, debootstrap builds one.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() {
    echo "container image not built: $*" >&2
    exit 4
}

package=$1
engine=
for candidate in podman docker; do
    if [ -z "$engine" ] && "$candidate" info >/dev/null 2>&1; then
        engine=$candidate
    fi
done
[ -n "$engine" ] || missing "podman and docker are missing or do not work; run apt-get install podman"

. /etc/os-release
base=${BASE:-docker.io/library/$ID:$VERSION_CODENAME}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$engine" image inspect "$base" >/dev/null 2>&1 && ! "$engine" pull --quiet "$base" >/dev/null; then
    { [ "$(id -u)" -eq 0 ] && command -v debootstrap >/dev/null; } \
        || missing "cannot pull $base; run apt-get install debootstrap and repeat as root to build a base"
    echo "cannot pull $base; building a base with debootstrap"
    debootstrap --variant=minbase "$VERSION_CODENAME" "$work/base" >/dev/null
    base=localhost/netstage-base
    tar -C "$work/base" --exclude "./var/cache/apt/*" --exclude "./var/lib/apt/lists/*" -c . | "$engine" import - "$base" >/dev/null
fi
"$engine" run --rm "$base" true || missing "$engine cannot run a container"
mkdir "$work/context"
cp "$package" packaging/Containerfile "$work/context"
"$engine" build --network host --build-arg BASE="$base" -t netstage "$work/context"

run() {
    "$engine" run --rm --volume "$PWD/scenarios:/work/scenarios:ro" "$@" --out /tmp/record
}
run netstage run scenarios/examples/two-hosts.toml
# 5: the measurement is void, because this machine was too busy to send on time.
run --privileged netstage run scenarios/examples/two-hosts.toml --on emu || [ $? -eq 5 ]
