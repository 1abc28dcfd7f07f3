#!/usr/bin/env bash
# Installs the missing Debian packages of a list: at once as root or in CI, otherwise after confirmation.
# An entry `package=command` is satisfied by the command from any source.
set -euo pipefail

list=$1
missing=()
for entry in $(sed 's/#.*//' "$list"); do
    package=${entry%%=*}
    if [ "$entry" != "$package" ] && command -v "${entry#*=}" >/dev/null; then
        continue
    fi
    status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "Debian packages to install (from $list): ${missing[*]}"
sudo=
if [ "$(id -u)" -ne 0 ]; then
    sudo=sudo
    if [ "${CI:-}" != true ]; then
        read -r -p "Install them with sudo now? [y/N] " answer
        [ "$answer" = y ] || { echo "canceled; nothing was installed" >&2; exit 1; }
    fi
fi
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
