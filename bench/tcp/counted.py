"""The kernel's statistics of BPF programs (kernel.bpf_stats_enabled), and their value for an empty program."""

import contextlib
import ctypes
import json
import os
import pathlib
import struct
import subprocess

STATISTICS = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")
# linux/bpf.h
BPF_PROG_LOAD, BPF_PROG_TEST_RUN, BPF_PROG_TYPE_XDP = 5, 10, 6
SYSTEM_CALL = {"x86_64": 321, "aarch64": 280}
# r0 = XDP_PASS; exit
NOTHING = struct.pack("<BBhi", 0xB7, 0, 0, 2) + struct.pack("<BBhi", 0x95, 0, 0, 0)
NAME = b"bench_nothing"


@contextlib.contextmanager
def counting():
    """Enables the kernel's statistics, which have a cost of their own."""
    before = STATISTICS.read_text()
    STATISTICS.write_text("1")
    try:
        yield
    finally:
        STATISTICS.write_text(before)


def spent(names):
    """Returns the total nanoseconds and runs of programs by name."""
    listed = subprocess.run(["bpftool", "--json", "prog", "show"], check=True, capture_output=True, text=True)
    found = {}
    for program in json.loads(listed.stdout):
        # The kernel truncates names to 15 characters.
        name = next((name for name in names if name[:15] == program.get("name")), None)
        if name:
            time_ns, runs = found.get(name, (0, 0))
            found[name] = (time_ns + program.get("run_time_ns", 0), runs + program.get("run_cnt", 0))
    return found


def call(command: int, attributes: bytes) -> int:
    given = ctypes.create_string_buffer(attributes, len(attributes))
    result = ctypes.CDLL(None, use_errno=True).syscall(SYSTEM_CALL[os.uname().machine], command, given, len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), "bpf()")
    return result


def empty_run_ns(runs: int = 2_000_000) -> float:
    """Returns the nanoseconds counted for a run of an empty program, which is the reading of the clock."""
    code, license = ctypes.create_string_buffer(NOTHING), ctypes.create_string_buffer(b"GPL")
    packet = ctypes.create_string_buffer(64)
    program = call(BPF_PROG_LOAD, struct.pack("<IIQQIIQII16s", BPF_PROG_TYPE_XDP, len(NOTHING) // 8, ctypes.addressof(code),
                                              ctypes.addressof(license), 0, 0, 0, 0, 0, NAME))
    try:
        with counting():
            call(BPF_PROG_TEST_RUN, struct.pack("<IIIIQQIIIIQQ", program, 0, len(packet), 0, ctypes.addressof(packet), 0,
                                                runs, 0, 0, 0, 0, 0))
            time_ns, counted = spent([NAME.decode()])[NAME.decode()]
    finally:
        os.close(program)
    return time_ns / counted
