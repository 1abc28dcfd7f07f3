#!/usr/bin/python3
"""Runs a command with the restrictions of a systemd unit, without systemd: account (nobody for a dynamic user),
capabilities, limits, delegated cgroup, system calls and address families. Restrictions of the file system are not
applied.

    as_unit.py UNIT[:DROP-IN] COMMAND...
"""

import contextlib
import errno
import os
import resource
import socket
import subprocess
import sys

import seccomp

NOBODY = "65534"
# Environment variable that is set after the change of the account.
IN_ACCOUNT = "AS_UNIT_IN_ACCOUNT"
# Number of AF_XDP, which Python does not know.
AF_XDP = 44
BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Settings to which a drop-in adds values.
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


def delegate():
    """Moves the process into a cgroup of version 2 that belongs to the account."""
    mount = next(line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup2 " in line)
    own = next(line.strip()[3:] for line in open("/proc/self/cgroup") if line.startswith("0::"))
    parent = os.path.join(mount, own.lstrip("/"))
    # Remove the cgroups of processes that have ended. Those of others may be empty, too.
    for name in os.listdir(parent):
        if name.startswith("as-unit-") and not os.path.exists(f"/proc/{name.removeprefix('as-unit-')}"):
            for path, _, _ in os.walk(os.path.join(parent, name), topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
    folder = os.path.join(parent, f"as-unit-{os.getpid()}")
    os.mkdir(folder)
    for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"]:
        os.chown(os.path.join(folder, name), int(NOBODY), int(NOBODY))
    with open(os.path.join(folder, "cgroup.procs"), "w") as processes:
        processes.write("0")


def change_account(unit):
    if unit.get("Delegate") == "yes":
        delegate()
    for limit in ["NOFILE", "MEMLOCK"]:
        text = unit["Limit" + limit]
        value = int(text[:-1]) * BYTES[text[-1]] if text[-1] in BYTES else int(text)
        kind = getattr(resource, "RLIMIT_" + limit)
        current = resource.getrlimit(kind)[1]
        # Raising a limit needs CAP_SYS_RESOURCE.
        value = value if current == resource.RLIM_INFINITY else min(value, current)
        resource.setrlimit(kind, (value, value))
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
    """Yields the system calls of a systemd group."""
    if not name.startswith("@"):
        yield name
        return
    result = subprocess.run(["systemd-analyze", "syscall-filter", name], stdout=subprocess.PIPE, text=True, check=True)
    for line in map(str.strip, result.stdout.splitlines()[1:]):
        if line and not line.startswith("#"):
            yield from calls(line)


def restrict(unit):
    error = getattr(errno, unit["SystemCallErrorNumber"])
    allowed = seccomp.SyscallFilter(defaction=seccomp.ERRNO(error))
    # systemd allows @default to every service.
    for name in ["@default", *unit["SystemCallFilter"].split()]:
        for call in calls(name):
            if call == "socket":
                continue
            try:
                allowed.add_rule(seccomp.ALLOW, call)
            except RuntimeError:
                # A system call of another architecture.
                pass
    for family in unit["RestrictAddressFamilies"].split():
        number = AF_XDP if family == "AF_XDP" else getattr(socket, family)
        allowed.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, number))
    allowed.load()


def main():
    unit = settings(sys.argv[1])
    if os.environ.pop(IN_ACCOUNT, None) is None:
        change_account(unit)
    restrict(unit)
    os.execvp(sys.argv[2], sys.argv[2:])


main()
