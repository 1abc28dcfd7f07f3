#!/usr/bin/env python3
"""Lists the skipped and repeated tests and counts the others, at the end of scripts/test.sh.

With CI=true in the environment, every skipped test must be in tests/absent.toml, and every entry there must match a
skipped test. If an entry has `doctor`, `netstage doctor` must report that feature as missing.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ABSENT = pathlib.Path(__file__).parent.parent / "tests" / "absent.toml"
# Output lines of Rust's test harness and libtest-mimic, of pytest -rs, and of vitest.
RESULT = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
IGNORED = re.compile(r"^test (.+?) \.\.\. ignored(?:, (.*))?$", re.MULTILINE)
BINARY = re.compile(r"^ +(?:Running .*\(.*/([\w-]+)-[0-9a-f]+\)|Doc-tests (\w+))$", re.MULTILINE)
PYTEST = re.compile(r"^SKIPPED \[(\d+)\] ([^:\s]+(?::\d+)?): (.*)$", re.MULTILINE)
PYTEST_END = re.compile(r"(\d+) (passed|failed|error|skipped)")
VITEST_END = re.compile(r"^ +Tests .*$", re.MULTILINE)
VITEST_SKIP = re.compile(r"^ +↓ (.*?)(?: \[(.*)\])?$", re.MULTILINE)
VITEST_REPEATED = re.compile(r"^ +[✓×] (.*?)(?: +\d+ms)? \(retry x\d+\)", re.MULTILINE)
COLOR = re.compile(r"\x1b\[[0-9;]*m")


def read(path):
    return COLOR.sub("", path.read_text(errors="replace")) if path.exists() else ""


def rust(report):
    """Returns passed, failed, and the skipped and repeated tests as (name, kind, reason)."""
    text = read(report / "rust.log")
    counts = [sum(int(found[n]) for found in RESULT.findall(text)) for n in range(3)]
    harness = [line.split("\t") for line in read(report / "skips").splitlines()]
    skips = [(f"{binary}::{test}", kind, reason) for binary, test, kind, reason in harness]
    binaries = {binary for binary, *_ in harness}
    parts = BINARY.split(text)
    # Each part follows the name of its test binary or doc-test crate. Binaries with netstage's harness report in a file.
    for binary, crate, part in zip(parts[1::3], parts[2::3], parts[3::3]):
        if binary not in binaries:
            skips += [
                (f"{binary or crate}::{test}", "ignored", reason or "") for test, reason in IGNORED.findall(part)
            ]
    named = sum(kind != "repeated" for _, kind, _ in skips)
    if named != counts[2]:
        print(f"error: {counts[2]} tests ignored, but the output names {named}", file=sys.stderr)
        counts[1] += 1
    return counts[0], counts[1], skips


def python(report):
    text = read(report / "python.log")
    end = text.strip().splitlines()[-1:] or [""]
    counts = dict((what, int(count)) for count, what in PYTEST_END.findall(end[0]))
    skips = [(f"python::{place}", "missing", reason) for _, place, reason in PYTEST.findall(text)]
    return counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0), skips


def web(report):
    text = read(report / "web.log")
    count = lambda what: sum(int(n) for n in re.findall(rf"(\d+) {what}", " ".join(VITEST_END.findall(text))))
    skips = [(f"web::{name}", "missing", reason or "no browser, program or root") for name, reason in VITEST_SKIP.findall(text)]
    skips += [(f"web::{name}", "repeated", "failed once") for name in VITEST_REPEATED.findall(text)]
    return count("passed"), count("failed"), skips


def doctor(program):
    """Returns the features that `netstage doctor` checks: name to presence."""
    try:
        output = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, timeout=120)
        return {finding["name"]: finding["present"] for finding in json.loads(output.stdout)["findings"]}
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        print(f"error: netstage doctor failed: {error}", file=sys.stderr)
        return {}


def judge(skips, program):
    """Returns the differences between the skipped tests and tests/absent.toml."""
    entries = tomllib.loads(ABSENT.read_text()).get("absent", [])
    features, faults = doctor(program), []
    for name, kind, reason in skips:
        if kind == "missing" and not any(matches(entry, name) for entry in entries):
            faults.append(f"{name} was skipped ({reason}) but is not in tests/absent.toml")
        if kind == "busy" and not any(entry.get("may_be_busy") and matches(entry, name) for entry in entries):
            faults.append(f"{name} was skipped ({reason}) but has no may_be_busy in tests/absent.toml")
    for entry in entries:
        hit = [name for name, kind, _ in skips if kind in ("missing", "busy") and matches(entry, name)]
        if not hit and not entry.get("may_be_busy"):
            faults.append(f"{entry['test']} is in tests/absent.toml but was not skipped")
        feature = entry.get("doctor")
        if feature and features.get(feature) is not False:
            state = "present" if features.get(feature) else "unknown"
            faults.append(f"{entry['test']} is in tests/absent.toml, but netstage doctor reports {feature} as {state}")
    return faults


def matches(entry, name):
    return fnmatch.fnmatchcase(name, entry["test"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--program", default="target/release/netstage")
    parser.add_argument("--failed", default="", help="suites that failed")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    passed, failed, skips = 0, 0, []
    for suite in (rust, python, web):
        more = suite(options.report)
        passed, failed, skips = passed + more[0], failed + more[1], skips + more[2]
    repeated = [(name, reason) for name, kind, reason in skips if kind == "repeated"]
    skips = [entry for entry in skips if entry[1] != "repeated"]
    print("\nskipped:" if skips else "\nno test was skipped")
    for title, wanted in [("", ("missing",)), ("busy", ("busy",)), ("runs in make test", ("slow",)), ("runs in make test-full", ("ignored",))]:
        for name, kind, reason in sorted(skips):
            if kind in wanted:
                print(f"  {name}: {reason}{f' ({title})' if title else ''}")
    if repeated:
        print("run twice, the second time alone:")
        for name, reason in sorted(repeated):
            print(f"  {name}: {reason}")
    faults = judge(skips, options.program) if os.environ.get("CI") == "true" else []
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    for name in options.failed.split():
        print(f"error: the {name} tests failed: {options.report / name}.log", file=sys.stderr)
    print(f"{passed} passed, {failed} failed, {len(skips)} skipped, {len(repeated)} run twice")
    return 1 if failed or options.failed or faults else 0


if __name__ == "__main__":
    sys.exit(main())
