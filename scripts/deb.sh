#!/usr/bin/env bash
# Builds the Debian package of PROGRAM in FOLDER and prints its path. DEBFULLNAME and DEBEMAIL replace the maintainer.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$1
out=$(mkdir -p "$2" && realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
version=$("$program" --version)
version=${version#netstage }
maintainer="${DEBFULLNAME:-netstage maintainers} <${DEBEMAIL:-maintainers@netstage.dev}>"
architecture=$(dpkg --print-architecture)
# The same sources give the same package: all files carry the time of the last commit.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

scripts/install.sh "$program" "$root/usr"
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_netstage" "$root/usr/share/zsh/vendor-completions"
rmdir "$root/usr/share/zsh/site-functions"
gzip -9n "$root"/usr/share/man/man1/*.1

for unit in packaging/*.service; do
    install -D -m 644 "$unit" "$root/lib/systemd/system/$(basename "$unit")"
done
# The tasks that this host permits its agent. dpkg keeps local changes.
install -D -m 644 packaging/agent.toml "$root/etc/netstage/agent.toml"
# The user of the service can enter this folder, whatever umask root has when the agent joins a fleet.
mkdir -p "$root/var/lib/netstage"

docs=$root/usr/share/doc/netstage
# The package has these files elsewhere.
rm "$docs"/LICENSE-* "$docs"/examples/{agent.toml,*.service}
gzip -9nc "$docs/CHANGELOG.md" >"$docs/changelog.gz"
rm "$docs/CHANGELOG.md"
gzip -9nc "$docs/licenses.txt" >"$docs/licenses.gz"
rm "$docs/licenses.txt"
gzip -9nc >"$docs/changelog.Debian.gz" <<END
netstage ($version-1) unstable; urgency=medium

  * New release; changelog.gz lists the changes.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
{
    echo "Upstream-Name: netstage"
    echo "License: Apache-2.0 OR MIT"
    echo "The kernel programs in it are also available under GPL-2.0-only."
    echo "Apache-2.0 is in /usr/share/common-licenses/Apache-2.0. MIT:"
    echo
    cat LICENSE-MIT
    echo
    echo "/usr/share/doc/netstage/licenses.gz has the licenses of the crates linked into it."
} >"$docs/copyright"
install -D -m 644 packaging/lintian-overrides "$root/usr/share/lintian/overrides/netstage"
find "$root" -type d -exec chmod 755 {} +
find "$root/usr/share" -type f -exec chmod 644 {} +

# The libraries it needs, as Debian's own tool finds them. The version of glibc is that of the newest symbol it uses:
# Debian 12's lists would ask for 2.34, which moved the threads from libpthread to libc.
mkdir -p "$work/debian" "$root/DEBIAN"
printf 'Source: netstage\n\nPackage: netstage\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/netstage 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
glibc=$(objdump -T "$root/usr/bin/netstage" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1)
depends=$(sed -E "s/libc6 \(>= [^)]*\)/libc6 (>= ${glibc#GLIBC_})/" <<<"$depends")
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
Description: network simulator, emulator, fair PE router and tester
 A scenario file describes a network, its customers and their traffic. netstage
 runs it in a simulator, with real packets on one host, or between hosts, and
 writes one report for all three. It also contains a provider edge router that
 shares a best-effort core fairly among VPNs, an MPLS and IP router, a router
 tester, a traffic and measurement agent, and a TCP observer.
END
echo /etc/netstage/agent.toml >"$root/DEBIAN/conffiles"
install -m 755 packaging/{postinst,prerm,postrm} "$root/DEBIAN"

(cd "$root" && find etc lib usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
package=$out/netstage_$version-1_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
