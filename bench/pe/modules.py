#!/usr/bin/env python3
"""Prints the time of the forwarding threads of provider edge routers by part of the program and of the kernel: 100 VPNs
at 100 Mbit/s, by perf (Debian: linux-perf). README.md describes the method."""

import collections
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = BENCH.parent
TARGET = BENCH / "target" / "pe"
PROGRAM = REPOSITORY / "target/release/netstage"
SCENARIO = REPOSITORY / "scenarios/papers/i2vfc/fig11.toml"
THREAD = "pe-forward"
SECONDS = 20

# The first group with a matching word counts.
OWN = [
    ("window control", ["core::fair"]),
    ("queues, timers and scheduling", ["core::edge", "core::queue", "core::wheel", "core::timer"]),
    ("from customers: circuit, route, queue", ["engine::customer", "engine::circuits", "core::edge::routes"]),
    ("from the core: label, count, deliver", ["engine::network", "engine::message"]),
    ("encapsulation and management packets", ["engine::encapsulation", "netstage_wire"]),
    ("ports", ["ports::", "arrivals", "clock::"]),
    ("other parts of the engine", [""]),
]
KERNEL = [
    ("AF_PACKET", ["packet_", "tpacket", "prb_", "__packet"]),
    ("waiting and waking", ["epoll", "poll", "schedule", "hrtimer", "wake", "futex", "switch", "idle", "timerfd", "eventfd"]),
    ("veth and the network stack", ["veth", "skb", "netif", "xmit", "napi", "net_rx", "ip_", "udp", "eth_", "dev_", "bpf"]),
    ("copying and memory", ["copy", "mem", "page", "slab", "kmalloc", "kfree", "alloc"]),
    ("other parts of the kernel", [""]),
]


def part(symbol: str, of_kernel: bool) -> str:
    groups = KERNEL if of_kernel else OWN
    return next(name for name, words in groups if any(word in symbol for word in words))


def record() -> pathlib.Path:
    TARGET.mkdir(parents=True, exist_ok=True)
    data, folder = TARGET / "perf.data", TARGET / "modules"
    shutil.rmtree(folder, ignore_errors=True)
    run = subprocess.Popen(
        [PROGRAM, "run", SCENARIO, "--on", "emu", "--retries", "0", "--out", folder,
         "--set", f"scenario.duration={SECONDS + 10} s", "--set", "link.emulator.rate=100 Mbit/s"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # By then all flows have started and recovered from the first losses.
    time.sleep(8)
    perf = subprocess.run(["perf", "record", "-q", "-a", "-e", "cpu-clock", "-F", "4999", "-o", data, "sleep", str(SECONDS)],
                          stderr=subprocess.PIPE, text=True, check=False)
    if perf.returncode != 0:
        run.send_signal(signal.SIGINT)
        run.wait()
        sys.exit(f"perf: {perf.stderr.strip()}")
    run.wait()
    return data


def samples(data: pathlib.Path):
    """Yields process, symbol and whether it belongs to the kernel, for each sample of a forwarding thread."""
    script = subprocess.run(["perf", "script", "-i", data, "--comms", THREAD, "-F", "pid,ip,sym,dso"],
                            capture_output=True, text=True, check=True)
    for line in script.stdout.splitlines():
        found = re.match(r"\s*(\d+)\s+[0-9a-f]+\s+(.*?)\s+\((.*)\)\s*$", line)
        if found:
            yield int(found[1]), found[2], "kernel" in found[3] or found[3].startswith("[")


def main():
    if os.geteuid() != 0 or not shutil.which("perf"):
        sys.exit("needs root and perf (Debian: linux-perf)")
    by_process = collections.defaultdict(collections.Counter)
    for process, symbol, of_kernel in samples(record()):
        by_process[process]["kernel" if of_kernel else "own code", part(symbol, of_kernel)] += 1
    if len(by_process) != 2:
        sys.exit(f"{len(by_process)} provider edge routers found, expected 2")
    # The ingress uses more time.
    ingress, egress = sorted(by_process.values(), key=lambda parts: -sum(parts.values()))
    print("100 VPNs at 100 Mbit/s, share of the forwarding thread's time:\n\n| | | ingress | egress |\n|:--|:--|--:|--:|")
    for side in ("own code", "kernel"):
        for name, _ in OWN if side == "own code" else KERNEL:
            shares = [100 * parts[side, name] / sum(parts.values()) for parts in (ingress, egress)]
            print(f"| {side} | {name} | {shares[0]:.0f} % | {shares[1]:.0f} % |")
    print(f"\nof {sum(ingress.values())} and {sum(egress.values())} samples")


if __name__ == "__main__":
    main()
