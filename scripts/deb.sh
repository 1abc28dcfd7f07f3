#!/usr/bin/env bash
# Makes a Debian package of a built program: PROGRAM, and the FOLDER it goes to.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$1
out=$(mkdir -p "$2" && realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
version=$("$program" --version)
version=${version#netstage }
maintainer="${DEBFULLNAME:-The netstage authors} <${DEBEMAIL:-netstage@localhost}>"
architecture=$(dpkg --print-architecture)
# Equal sources give equal packages: files are of the day of the last commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

install -D "$program" "$root/usr/bin/netstage"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/bin/netstage"

"$program" man "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*.1
complete() {
    mkdir -p "$(dirname "$root/$2")"
    "$program" completions "$1" >"$root/$2"
}
complete bash usr/share/bash-completion/completions/netstage
complete zsh usr/share/zsh/vendor-completions/_netstage
complete fish usr/share/fish/vendor_completions.d/netstage.fish

for unit in packaging/*.service; do
    [ ! -e "$unit" ] || install -D -m 644 "$unit" "$root/lib/systemd/system/$(basename "$unit")"
done

# What the agent may be asked to do is the host's to say: dpkg keeps what was changed there.
install -D -m 644 packaging/agent.toml "$root/etc/netstage/agent.toml"
# The service's user passes here, whatever mask root has when he joins.
mkdir -p "$root/var/lib/netstage"

docs=$root/usr/share/doc/netstage
mkdir -p "$docs"
# Pages are beside each other as here, so that their links lead somewhere.
cp README.md SECURITY.md "$docs"
cp -r docs scenarios "$docs"
install -D packaging/agent-router.conf "$docs/examples/agent-router.conf"
gzip -9nc CHANGELOG.md >"$docs/changelog.gz"
gzip -9nc >"$docs/changelog.Debian.gz" <<END
netstage ($version-1) unstable; urgency=medium

  * What changed is in changelog.gz.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
scripts/licences.py | gzip -9n >"$docs/licences.gz"
{
    echo "Upstream-Name: netstage"
    echo "License: Apache-2.0 OR MIT"
    echo "The kernel programs it carries may be had under GPL-2.0-only, too."
    echo "Apache-2.0 is in /usr/share/common-licenses/Apache-2.0. MIT:"
    echo
    cat LICENSE-MIT
    echo
    echo "Packages it is linked with have licences of their own: /usr/share/doc/netstage/licences.gz."
} >"$docs/copyright"
find "$root" -type d -exec chmod 755 {} +
find "$root" -type f ! -path "$root/usr/bin/*" -exec chmod 644 {} +

# What it is linked with, as Debian's own tool finds it.
mkdir -p "$work/debian" "$root/DEBIAN"
printf 'Source: netstage\n\nPackage: netstage\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/netstage 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
cat >"$root/DEBIAN/control" <<END
Package: netstage
Version: $version-1
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: $depends
Suggests: vsftpd, curl, tgt, libiscsi-bin, frr, tshark, iperf3, strongswan-charon, wireguard-go, openvpn
Section: net
Priority: optional
Description: stages a network, proves how it performs, and keeps it fair
 Describes a network, its customers and its traffic once, in a scenario file;
 runs it as a simulation, as real packets on one machine, or on real hosts; and
 gives one report. Also a provider edge router that shares a best-effort core
 fairly among VPNs, a router of MPLS and IP, a router tester, a traffic and
 measurement agent, and an observatory of TCP.
END
echo /etc/netstage/agent.toml >"$root/DEBIAN/conffiles"
install -m 755 packaging/{postinst,prerm,postrm} "$root/DEBIAN"

(cd "$root" && find etc lib usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
package=$out/netstage_$version-1_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
