#!/usr/bin/env python3
"""Prints the licenses of the crates linked into PACKAGE… of the workspace (default: netstage). Each text appears once."""

import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
TEXTS = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice|unlicense)")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


linked = output(
    *("cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"),
    *(word for package in sys.argv[1:] or ["netstage"] for word in ("--package", package)),
)
names = {tuple(line.split()[:2]) for line in linked.splitlines()}
host = re.search(r"host: (\S+)", output("rustc", "-vV"))[1]
metadata = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host))
owners = collections.defaultdict(list)
for package in metadata["packages"]:
    if package["source"] is None or (package["name"], f"v{package['version']}") not in names:
        continue
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [file for file in sorted(folder.iterdir()) if TEXTS.match(file.name) and file.is_file()]
    texts = [file.read_text(errors="replace").strip() for file in files]
    for text in texts or [f"The package contains no license text; see {package['repository']}."]:
        owners[text].append(f"{package['name']} {package['version']} ({package['license']})")

print("netstage contains Rust's standard library (MIT OR Apache-2.0) and these crates from crates.io.")
for text, packages in sorted(owners.items(), key=lambda item: item[1]):
    print(f"\n{'=' * 72}\n" + "\n".join(packages) + f"\n{'-' * 72}\n\n{text}")
