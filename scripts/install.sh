#!/usr/bin/env bash
# Installs PROGRAM below PREFIX with man pages, shell completions, documentation, example scenarios and licenses.
# scripts/deb.sh and scripts/release.sh use it.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$1
prefix=$2

install -D "$program" "$prefix/bin/netstage"
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$prefix/bin/netstage"

"$program" man "$prefix/share/man/man1"
complete() {
    mkdir -p "$(dirname "$prefix/share/$2")"
    "$program" completions "$1" >"$prefix/share/$2"
}
complete bash bash-completion/completions/netstage
complete zsh zsh/site-functions/_netstage
complete fish fish/vendor_completions.d/netstage.fish

# The pages keep their relative positions, so that the links between them work.
pages=$prefix/share/doc/netstage
mkdir -p "$pages"
cp README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE-APACHE LICENSE-MIT "$pages"
cp -r docs scenarios "$pages"
install -D -t "$pages/examples" packaging/agent-router.conf packaging/agent.toml packaging/*.service
scripts/licenses.py >"$pages/licenses.txt"
find "$prefix" -type d -exec chmod 755 {} +
find "$prefix" -type f ! -path "$prefix/bin/*" -exec chmod 644 {} +
