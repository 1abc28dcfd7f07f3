#!/usr/bin/env python3
"""Compares netstage's traffic engine with other generators over one pair of namespaces: the
accuracy of the packet schedule, and the packet rate of a busy core. README.md lists the equal
settings. Needs root."""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(BENCH))

from pair import Pair  # noqa: E402

REPOSITORY = BENCH.parent
TARGET = BENCH / "target"
FLOW = REPOSITORY / "target/release/flow"
CAPTURE = pathlib.Path(__file__).resolve().parent / "capture.py"
SENDER, RECEIVER = Pair.addresses
PORT = 5201
EXIT_FAILED, EXIT_MISSING = 1, 4
SMALL = 18


class Stage(Pair):
    """Two connected namespaces whose link carries datagrams one by one."""

    def __enter__(self):
        super().__enter__()
        for side, device in enumerate(self.devices):
            # Otherwise 64 datagrams would cross as one packet.
            self.run(side, "ethtool", "-K", device, "tx-udp-segmentation", "off")
        return self

    def split_by_receiver(self, on: bool):
        """Sets whether UDP batches cross the link whole and are split by the receiver's kernel."""
        self.run(0, "ethtool", "-K", self.devices[0], "tx-udp-segmentation", "on" if on else "off")

    def received(self) -> int:
        """Returns the datagrams received by the receiver's UDP, including those dropped for lack of buffer space."""
        lines = self.run(1, "cat", "/proc/net/snmp", capture_output=True, text=True).stdout.splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith("Udp: "))
        counts = dict(zip(names, map(int, values), strict=True))
        return counts["InDatagrams"] + counts["InErrors"] + counts["NoPorts"]


def assignment(side: str, transport: dict, traffic: dict, seconds: float) -> str:
    nanoseconds = int(seconds * 1e9)
    flow = {"name": "bench", "id": 1, "side": side, "transport": transport, "source": f"{SENDER}:0",
            "destination": f"{RECEIVER}:{PORT}", "traffic": {"pattern": traffic}, "start": 0,
            "stop": nanoseconds, "detail": False}
    return json.dumps({"node": side, "seed": 1, "duration": nanoseconds, "interval": 1_000_000_000,
                       "flows": [flow]})


class Netstage:
    """Traffic engine of netstage on both sides."""

    def __init__(self, batch: int = 1, split_by_receiver: bool = False, spin: bool = False, limited: bool = False):
        self.batch, self.split_by_receiver, self.spin, self.limited = batch, split_by_receiver, spin, limited
        self.name = "netstage" if batch == 1 else "netstage GSO"
        if split_by_receiver:
            self.name += ", receiver splits"
        if spin:
            self.name += ", spin"
        if limited:
            self.name += ", limited"

    def udp(self, traffic: dict) -> "Netstage":
        self.transport, self.traffic = {"udp": {"batch": self.batch, "spin": self.spin}}, traffic
        return self

    def tcp(self) -> "Netstage":
        self.transport, self.traffic = {"tcp": {}}, {"bulk": {"size": None}}
        return self

    def sink(self, stage: Stage, seconds: float) -> subprocess.Popen:
        process = stage.start(1, str(FLOW), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        process.stdin.write(assignment("receive", self.transport, self.traffic, seconds + 1))
        process.stdin.close()
        process.stderr.readline()
        return process

    def send(self, stage: Stage, seconds: float) -> dict:
        options = ["--limited"] if self.limited else []
        report = stage.run(0, str(FLOW), *options, input=assignment("send", self.transport, self.traffic, seconds),
                           capture_output=True, text=True).stdout
        return json.loads(report)["flows"][0]


class Peer:
    """Another program: its commands to receive and to send, with the arguments of the case."""

    def __init__(self, name: str, serve: list, send: list):
        self.name, self.serve, self.sending = name, serve, send

    def sink(self, stage: Stage, seconds: float) -> subprocess.Popen:
        serve = self.serve or [sys.executable, "-c", SINK]
        process = stage.start(1, *serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        return process

    def send(self, stage: Stage, seconds: float) -> str:
        command = [part.format(seconds=int(seconds), milliseconds=int(seconds * 1000)) for part in self.sending]
        return stage.run(0, *command, capture_output=True, text=True, cwd=TARGET).stdout


SINK = f"""
import socket
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
sink.bind(("{RECEIVER}", {PORT}))
while True:
    sink.recv(2048)
"""


def paced_peers(pattern: str) -> list:
    mgen = {"cbr": "PERIODIC", "poisson": "POISSON"}[pattern]
    peers = [
        # It keeps running after its last event: it is interrupted, and exits with success.
        Peer("MGEN", [], ["timeout", "--preserve-status", "--signal=INT", "{seconds}.5", "mgen", "txlog", "output",
                          "/dev/null", "event", f"0.0 ON 1 UDP DST {RECEIVER}/{PORT} {mgen} [1250 1000]",
                          "event", "{seconds}.0 OFF 1"]),
        Peer("D-ITG", ["ITGRecv"], ["ITGSend", "-a", RECEIVER, "-rp", str(PORT), "-T", "UDP",
                                    *(["-C", "1250"] if pattern == "cbr" else ["-O", "1250"]),
                                    "-c", "1000", "-t", "{milliseconds}"]),
    ]
    if pattern == "cbr":
        peers += [
            Peer("iperf3", ["iperf3", "-s"], ["iperf3", "-c", RECEIVER, "-u", "-b", "10M", "-l", "1000",
                                              "-t", "{seconds}"]),
            Peer("iperf2", ["iperf", "-s", "-u", "-l", "1000"],
                 ["iperf", "-c", RECEIVER, "-u", "-b", "1250pps", "-l", "1000", "-t", "{seconds}"]),
            Peer("nuttcp", ["nuttcp", "-S", "--nofork"],
                 ["nuttcp", "-u", "-Ri10m", "-l1000", "-T{seconds}", RECEIVER]),
        ]
    return peers


def small_packet_peers() -> list:
    size = str(SMALL)
    return [
        Peer("iperf3", ["iperf3", "-s"],
             ["iperf3", "-c", RECEIVER, "-u", "-b", "0", "-l", size, "-t", "{seconds}"]),
        Peer("iperf2", ["iperf", "-s", "-u"],
             ["iperf", "-c", RECEIVER, "-u", "-b", "10g", "-l", size, "-t", "{seconds}"]),
        Peer("nuttcp", ["nuttcp", "-S", "--nofork"],
             ["nuttcp", "-u", "-R1000m", "-l" + size, "-T{seconds}", RECEIVER]),
    ]


@contextlib.contextmanager
def terminating(process: subprocess.Popen):
    """Ends the process of a case, so that a failed case does not disturb the next one."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def schedule_accuracy(stage: Stage, generator, pattern: str, seconds: float, rate: int = 1250) -> dict:
    capture = stage.start(1, sys.executable, str(CAPTURE), Pair.devices[1], "1000", str(seconds + 3),
                          str(1_000_000_000 // rate), pattern,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with terminating(capture), terminating(generator.sink(stage, seconds)):
        capture.stderr.readline()
        before = processor_seconds()
        generator.send(stage, seconds)
        cost = processor_seconds() - before
        result = json.loads(capture.communicate()[0])
    return result | {"processor_share": cost / seconds, "load": os.getloadavg()[0]}


def ceiling(stage: Stage, generator, seconds: float) -> dict:
    """Measures the received packets per second, and per second of the sender's processor time."""
    stage.split_by_receiver(getattr(generator, "split_by_receiver", False))
    with terminating(generator.sink(stage, seconds)):
        packets, began, before = stage.received(), time.monotonic(), processor_seconds()
        generator.send(stage, seconds)
        cost, packets = processor_seconds() - before, stage.received() - packets
    return {"mpps": packets / seconds / 1e6, "mpps_per_core": packets / max(cost, 1e-9) / 1e6,
            "elapsed": time.monotonic() - began}


def bulk(stage: Stage, seconds: float, program: str, limited: bool = False) -> dict:
    if program == "netstage":
        engine = Netstage(limited=limited).tcp()
        with terminating(engine.sink(stage, seconds)) as sink:
            engine.send(stage, seconds)
            received = json.loads(sink.stdout.read())
        return {"gbps": sum(each["received_bytes"] for each in received["flows"][0]["bins"]) * 8 / seconds / 1e9}
    extra = program.split()[1:]
    with terminating(Peer("iperf3", ["iperf3", "-s"], []).sink(stage, seconds)):
        command = ["iperf3", "-c", RECEIVER, "-J", "-t", str(int(seconds)), *extra]
        output = stage.run(0, *command, capture_output=True).stdout
    return {"gbps": json.loads(output)["end"]["sum_received"]["bits_per_second"] / 1e9}


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(title: str, results: dict, columns: list) -> None:
    print(f"\n{title}\n| | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for name, runs in results.items():
        cells = []
        for column in columns:
            values = [run[column] for run in runs if column in run]
            cells.append(f"{statistics.median(values):.4g}" if values else "failed")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def measure(title: str, columns: list, runs: int, cases: list) -> dict:
    """Runs the cases in turns, so that all have the same conditions."""
    results = {name: [] for name, _ in cases}
    for _ in range(runs):
        for name, case in cases:
            try:
                results[name].append(case())
            except (subprocess.CalledProcessError, json.JSONDecodeError, KeyError) as error:
                print(f"{name}: {error}", file=sys.stderr)
    table(title, results, columns)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["cbr", "poisson", "pacing", "ceiling", "limits", "tcp"])
    parser.add_argument("--alone", action="store_true", help="without the other programs")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("network namespaces need root; run as root", file=sys.stderr)
        return EXIT_MISSING
    if not FLOW.exists():
        print("{FLOW} is missing; run cargo build --release -p netstage-bench --bin flow", file=sys.stderr)
        return EXIT_FAILED
    TARGET.mkdir(exist_ok=True)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load average {load:.1f} at the start")
    rate = {"rate": 10_000_000, "packet": 1000}
    # Slightly more than can be sent: unsent packets are counted at the end, on the sender's processor.
    flood, batched_flood = ({"cbr": {"rate": 8 * SMALL * pps, "packet": SMALL}} for pps in (800_000, 2_500_000))
    others = [] if options.alone else None
    results = {"load": load}

    def wanted(name: str) -> bool:
        return options.only in (None, name)

    def installed(peers: list) -> list:
        return others if others is not None else [peer for peer in peers if shutil.which(peer.sending[0])]

    with Stage() as stage:
        for pattern in filter(wanted, ["cbr", "poisson"]):
            generators = [Netstage().udp({pattern: rate}), *installed(paced_peers(pattern))]
            columns = ["rate_error", "gaps_within_5_percent", "gap_deviation_us", "gap_p99_us", "processor_share"]
            if pattern == "poisson":
                columns = ["rate_error", "ks_distance", "ks_limit_1_percent", "processor_share"]
            cases = [(each.name, lambda each=each: schedule_accuracy(stage, each, pattern, options.seconds))
                     for each in generators]
            results[pattern] = measure(f"1250 packets of 1000 bytes per second, {pattern}", columns, options.runs, cases)
        if wanted("pacing"):
            columns = ["gaps_within_5_percent", "gap_deviation_us", "gap_p99_us", "processor_share", "load"]
            for pps in [1250, 10_000]:
                traffic = {"cbr": {"rate": 8000 * pps, "packet": 1000}}
                cases = [(each.name, lambda each=each: schedule_accuracy(stage, each, "cbr", options.seconds, pps))
                         for each in (Netstage().udp(traffic), Netstage(spin=True).udp(traffic))]
                results[f"pacing {pps}"] = measure(f"{pps} packets of 1000 bytes per second, pacing", columns,
                                                   options.runs, cases)
        if wanted("ceiling"):
            generators = [Netstage().udp(flood), Netstage(64).udp(batched_flood), Netstage(64, True).udp(batched_flood),
                          *installed(small_packet_peers())]
            cases = [(each.name, lambda each=each: ceiling(stage, each, options.seconds)) for each in generators]
            results["ceiling"] = measure(f"UDP, {SMALL} bytes, as many as possible", ["mpps", "mpps_per_core"],
                                       options.runs, cases)
        if wanted("limits"):
            for batch, traffic in ((1, flood), (64, batched_flood)):
                generators = [Netstage(batch, limited=limited).udp(traffic) for limited in (False, True)]
                cases = [(each.name, lambda each=each: ceiling(stage, each, options.seconds)) for each in generators]
                results[f"limits {batch}"] = measure("UDP within an agent's limits", ["mpps", "mpps_per_core"],
                                                     options.runs, cases)
            cases = [(name, lambda limited=limited: bulk(stage, options.seconds, "netstage", limited))
                     for name, limited in (("netstage", False), ("netstage, limited", True))]
            results["limits tcp"] = measure("TCP within an agent's limits", ["gbps"], options.runs, cases)
        if wanted("tcp"):
            programs = ["netstage", *([] if options.alone else ["iperf3"])]
            cases = [(name, lambda name=name: bulk(stage, options.seconds, name)) for name in programs]
            results["tcp"] = measure("TCP, one connection", ["gbps"], options.runs, cases)
    (TARGET / "bench-traffic.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
