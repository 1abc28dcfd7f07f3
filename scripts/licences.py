#!/usr/bin/env python3
"""Prints the licences of what is linked into the program: every text once, below those whose it is."""

import collections
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[1]
TEXTS = re.compile(r"(?i)(licen[cs]e|copying|copyright|notice|unlicense)")


def said(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


linked = said(
    *("cargo", "tree", "--locked", "--package", "netstage", "--edges", "normal,no-proc-macro"),
    *("--prefix", "none", "--format", "{p}"),
)
names = {tuple(line.split()[:2]) for line in linked.splitlines()}
host = re.search(r"host: (\S+)", said("rustc", "-vV"))[1]
told = json.loads(said("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host))
owners = collections.defaultdict(list)
for package in told["packages"]:
    if package["source"] is None or (package["name"], f"v{package['version']}") not in names:
        continue
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [file for file in sorted(folder.iterdir()) if TEXTS.match(file.name) and file.is_file()]
    texts = [file.read_text(errors="replace").strip() for file in files]
    for text in texts or [f"As {package['repository']} says: the package has no text of its own."]:
        owners[text].append(f"{package['name']} {package['version']} ({package['license']})")

print("The program holds the standard library of Rust (MIT OR Apache-2.0), and these packages from crates.io.")
for text, packages in sorted(owners.items(), key=lambda item: item[1]):
    print(f"\n{'=' * 72}\n" + "\n".join(packages) + f"\n{'-' * 72}\n\n{text}")
