#!/usr/bin/env python3
"""What watching TCP costs: nanoseconds of each of `netstage tcp watch`'s programs in the kernel, records lost at a
high rate of ACKs, and throughput with an observer and without, in pairs: netstage, ss, bpftrace, perf. README.md says
how. Needs root; everything is gone when it ends."""

import argparse
import contextlib
import json
import math
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from pair import Pair  # noqa: E402

RECEIVER, PORT = Pair.addresses[1], "5201"
STATISTICS = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")
PROGRAMS = ["tcp_probe", "tcp_cong_state_set", "tcp_retransmit_skb", "inet_sock_set_state"]
TRACING = pathlib.Path("/sys/kernel/tracing")
# Small segments make many ACKs.
SMALL = 200
# Student's t, two-sided 95 %, by degrees of freedom.
STUDENT = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09]
EXIT_FAILED, EXIT_MISSING = 1, 4


class Stage(Pair):
    """Two namespaces and a link without offloads, so that every segment and ACK is one; a server at its far end."""

    def __enter__(self):
        super().__enter__()
        for side, device in enumerate(self.devices):
            self.run(side, "ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off",
                     stdout=subprocess.DEVNULL)
        # An ACK for each segment: the more there are, the harder it is to lose no record.
        self.run(1, "ip", "route", "replace", "10.99.0.0/24", "dev", "there", "quickack", "1")
        self.run(1, "sysctl", "-qe", "-w", "net.ipv4.tcp_backlog_ack_defer=0")
        self.server = self.start(1, "iperf3", "-s", stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not self.listens():
            if time.monotonic() > deadline:
                sys.exit("iperf3 -s does not listen")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        if server := getattr(self, "server", None):
            server.kill()
            server.wait()
        super().__exit__()

    def listens(self):
        return f":{PORT}" in self.run(1, "ss", "-ltn", capture_output=True, text=True).stdout

    def transfer(self, seconds, streams, segment=1448):
        """Payload received, bits per second."""
        done = self.run(0, "iperf3", "-c", RECEIVER, "-t", str(seconds), "-O", "1", "-P", str(streams), "-C", "cubic", "-M", str(segment), "-J",
                        capture_output=True, text=True)
        return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]


@contextlib.contextmanager
def counting():
    """The kernel counts what programs cost; it costs some itself."""
    before = STATISTICS.read_text()
    STATISTICS.write_text("1")
    try:
        yield
    finally:
        STATISTICS.write_text(before)


@contextlib.contextmanager
def observed(stage, *command, shell=False):
    """While a command observes."""
    log = tempfile.TemporaryFile()
    arguments = ["bash", "-c", command[0]] if shell else list(command)
    process = stage.start(0, *arguments, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    # Programs take a moment to be loaded.
    time.sleep(2)
    try:
        if process.poll() is not None:
            log.seek(0)
            sys.exit(f"{command[0]}: {log.read().decode(errors='replace')[-500:]}")
        yield log
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 2)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def spent():
    """Nanoseconds and runs so far of our programs, by name."""
    listed = subprocess.run(["bpftool", "--json", "prog", "show"], check=True, capture_output=True, text=True)
    found = {}
    for program in json.loads(listed.stdout):
        # The kernel cuts names after 15 characters.
        name = next((name for name in PROGRAMS if name[:15] == program.get("name")), None)
        if name:
            time_ns, runs = found.get(name, (0, 0))
            found[name] = (time_ns + program.get("run_time_ns", 0), runs + program.get("run_cnt", 0))
    return found


def cost(stage, netstage, filters, seconds, streams):
    """Of tcp_probe: nanoseconds and runs, records emitted and lost, and for how long."""
    watch = " ".join([netstage, "tcp", "watch", *filters, "--ndjson", "--for", str(seconds + 10)])
    with counting(), tempfile.NamedTemporaryFile("r") as last:
        # Lines are counted as they come: kept, they would be hundreds of megabytes.
        script = f"{watch} | tee >(tail -n 1 > {last.name}) | wc -l"
        process = stage.start(0, "bash", "-c", script, stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            deadline = time.monotonic() + 20
            while "tcp_probe" not in (before := spent()):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("netstage tcp watch does not load its programs: netstage doctor says why")
                time.sleep(0.1)
            start = time.monotonic()
            stage.transfer(seconds, streams, SMALL)
            after, took = spent(), time.monotonic() - start
            lines = int(process.communicate(timeout=60)[0])
            deadline = time.monotonic() + 10
            while not (said := last.read().strip()) and time.monotonic() < deadline:
                last.seek(0)
                time.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
    time_ns, runs = (after["tcp_probe"][at] - before["tcp_probe"][at] for at in range(2))
    return time_ns, runs, lines - 1, json.loads(said)["lost"], took


def costs(stage, netstage, seconds, streams):
    """A table of them. Segments that only arrive, without anything of their own under way, are no records: what they
    cost is taken to be what a filtered one does."""
    rows = []
    for name, filters in [("filtered by port", ["--port", "9"]),
                          ("filtered by process", ["--process", str(os.getpid())])]:
        time_ns, runs, _, lost, took = cost(stage, netstage, filters, seconds, streams)
        rows.append((name, time_ns / runs, runs / took, lost))
    time_ns, runs, emitted, lost, took = cost(stage, netstage, [], seconds, streams)
    rest = rows[0][1] * max(runs - emitted, 0)
    rows.append(("emitted", (time_ns - rest) / max(emitted, 1), emitted / took, lost))
    print("| a record that is | ns | a second | lost |\n|---|--:|--:|--:|")
    for name, each, rate, lost in rows:
        print(f"| {name} | {each:.0f} | {rate:,.0f} | {lost} |", flush=True)


def interval(values):
    mean = statistics.fmean(values)
    half = STUDENT[min(len(values) - 2, len(STUDENT) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, half


def observers(netstage):
    """By name: how to start it, as a command or for a shell; only those that are there."""
    found = {
        "netstage tcp watch": ([netstage, "tcp", "watch"], False),
        "netstage tcp watch, of another port": ([netstage, "tcp", "watch", "--port", "9"], False),
        "ss -tin, 20 times a second": (["while :; do ss -tin > /dev/null; sleep 0.05; done"], True),
    }
    if TRACING.joinpath("events/tcp/tcp_probe").exists():
        if shutil.which("bpftrace"):
            found["bpftrace, tcp_probe"] = (["bpftrace", str(HERE / "probe.bt")], False)
        if shutil.which("perf"):
            found["perf record, tcp_probe"] = (["perf", "record", "-a", "-e", "tcp:tcp_probe", "-o", "/dev/null"], False)
    return found


@contextlib.contextmanager
def tracing():
    """The kernel's trace files, mounted as long as it takes."""
    mounted = TRACING.exists() and not any(TRACING.iterdir())
    mounted = mounted and subprocess.run(["mount", "-t", "tracefs", "none", str(TRACING)], check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", str(TRACING)], check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--netstage", default=str(REPOSITORY / "target/release/netstage"))
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("bench-tcp needs root", file=sys.stderr)
        return EXIT_MISSING
    if arguments.pairs < 2:
        print("two pairs at least", file=sys.stderr)
        return EXIT_FAILED
    # What was begun ends with us, asked by whichever signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    seconds, streams, netstage = arguments.seconds, arguments.streams, arguments.netstage
    with tracing(), Stage() as stage:
        costs(stage, netstage, seconds, streams)
        print(f"\n| observer | throughput with it / without, {arguments.pairs} pairs, 95 % |\n|---|--:|", flush=True)
        everybody = observers(netstage)
        ratios = {name: [] for name in everybody}
        chance = random.Random(1)
        for _ in range(arguments.pairs):
            for name in chance.sample(list(everybody), len(everybody)):
                command, shell = everybody[name]

                def with_it():
                    with observed(stage, *command, shell=shell):
                        return stage.transfer(seconds, streams)

                if chance.random() < 0.5:
                    with_observer, without = with_it(), stage.transfer(seconds, streams)
                else:
                    without, with_observer = stage.transfer(seconds, streams), with_it()
                ratios[name].append(with_observer / without)
        for name, values in ratios.items():
            mean, half = interval(values)
            print(f"| {name} | {mean:.3f} ± {half:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
