#!/usr/bin/python3
"""Runs a command with what a systemd unit leaves it, where no systemd runs: its account, nobody's where the unit
asks for one of its own, its capabilities, limits, system calls and address families. What a unit does to the file system is not done.

    as_unit.py UNIT[:DROP-IN] COMMAND...
"""

import errno
import os
import resource
import socket
import subprocess
import sys

import seccomp

NOBODY = "65534"
# Set in the environment once the account is the unit's.
IN_ACCOUNT = "AS_UNIT_IN_ACCOUNT"
BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


# What is added to where a drop-in names it again.
LISTS = {"AmbientCapabilities", "CapabilityBoundingSet", "RestrictAddressFamilies", "SystemCallFilter"}


def settings(paths):
    found = {}
    for path in paths.split(":"):
        for line in map(str.strip, open(path)):
            if "=" not in line or line.startswith("#"):
                continue
            name, value = line.split("=", 1)
            found[name] = f"{found[name]} {value}" if name in LISTS and name in found else value
    return found


def capabilities(names):
    return ",".join(["-all"] + ["+" + name.removeprefix("CAP_").lower() for name in names.split()])


def change_account(unit):
    for limit in ["NOFILE", "MEMLOCK"]:
        text = unit["Limit" + limit]
        most = int(text[:-1]) * BYTES[text[-1]] if text[-1] in BYTES else int(text)
        which = getattr(resource, "RLIMIT_" + limit)
        ours = resource.getrlimit(which)[1]
        # Only who has CAP_SYS_RESOURCE may have more than he has.
        most = most if ours == resource.RLIM_INFINITY else min(most, ours)
        resource.setrlimit(which, (most, most))
    os.umask(int(unit["UMask"], 8))
    ambient = capabilities(unit["AmbientCapabilities"])
    os.environ[IN_ACCOUNT] = "1"
    account = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"] if unit.get("DynamicUser") == "yes" else []
    os.execvp("setpriv", [
        "setpriv", *account, "--no-new-privs",
        "--inh-caps", ambient, "--ambient-caps", ambient,
        "--bounding-set", capabilities(unit["CapabilityBoundingSet"]), "--", *sys.argv,
    ])


def calls(name):
    """System calls of a group, as systemd has them."""
    if not name.startswith("@"):
        yield name
        return
    told = subprocess.run(["systemd-analyze", "syscall-filter", name], stdout=subprocess.PIPE, text=True, check=True)
    for line in map(str.strip, told.stdout.splitlines()[1:]):
        if line and not line.startswith("#"):
            yield from calls(line)


def restrict(unit):
    error = getattr(errno, unit["SystemCallErrorNumber"])
    allowed = seccomp.SyscallFilter(defaction=seccomp.ERRNO(error))
    # What systemd leaves every service.
    for name in ["@default", *unit["SystemCallFilter"].split()]:
        for call in calls(name):
            if call == "socket":
                continue
            try:
                allowed.add_rule(seccomp.ALLOW, call)
            except RuntimeError:
                # One of another architecture.
                pass
    for family in unit["RestrictAddressFamilies"].split():
        allowed.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, getattr(socket, family)))
    allowed.load()


def main():
    unit = settings(sys.argv[1])
    if os.environ.pop(IN_ACCOUNT, None) is None:
        change_account(unit)
    restrict(unit)
    os.execvp(sys.argv[2], sys.argv[2:])


main()
