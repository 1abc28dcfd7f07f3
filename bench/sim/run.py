#!/usr/bin/env python3
"""Runs netstage and its peers alternately on the same cases and compares their cost and their
results. README.md lists the equal settings.

Every program prints one JSON document; `Program.result` maps it to the fields of
`RESULT_FIELDS`. All other code is independent of the program.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable

from scenario import scenario

BENCH = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = BENCH.parent
TARGET = BENCH / "target"
NS3_SOURCE = BENCH / "peers/ns3/single_bottleneck.cc"
NS3_PROGRAM = TARGET / "ns3-single-bottleneck"
NS3_LIBRARIES = ["applications", "point-to-point", "internet", "network", "core"]
NS2_PROGRAM = BENCH / "peers/ns2/single_bottleneck.tcl"

RESULT_FIELDS = ["peer", "version", "case", "seed", "vpn_mbps", "delivered_packets",
                 "packet_hops", "bottleneck_loss", "events"]
DELIVERED_TOLERANCE = 0.05
EXIT_FAILED, EXIT_USAGE, EXIT_EXPECTATION, EXIT_MISSING = 1, 2, 3, 4


class BenchError(Exception):
    def __init__(self, message: str, status: int = EXIT_FAILED):
        super().__init__(message)
        self.status = status


# Cases

@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    vpns: int
    flows: int
    bottleneck_mbps: int = 50
    buffer_packets: int = 50
    access_mbps: int = 1000
    background_mbps: int = 15
    window_bytes: int = 65536
    delays_ms: tuple = (50, 25, 75, 50, 25)

    def describe(self) -> str:
        return (f"{self.vpns} VPN{'s' * (self.vpns > 1)} × {self.flows} flows, "
                f"bottleneck {self.bottleneck_mbps} Mbit/s with {self.buffer_packets} packets, "
                f"access {self.access_mbps} Mbit/s, background {self.background_mbps} Mbit/s, "
                f"window {self.window_bytes // 1024} KiB")


CASES = {case.name: case for case in [
    Case("4x2", vpns=4, flows=2),
    Case("4x10", vpns=4, flows=10),
    Case("5x30", vpns=5, flows=30),
    Case("scaled", vpns=5, flows=300, bottleneck_mbps=500, buffer_packets=500,
         access_mbps=10_000, background_mbps=150),
    Case("low-loss", vpns=4, flows=2, bottleneck_mbps=200, buffer_packets=200,
         background_mbps=60),
    Case("light", vpns=1, flows=4, buffer_packets=300, background_mbps=0,
         window_bytes=256 * 1024, delays_ms=(25,)),
]}
DEFAULT_CASES = ["4x2", "4x10", "5x30"]


# Programs

@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    build: Callable[[], None]
    command: Callable[[Case, int, pathlib.Path], list]
    result: Callable[[Case, int, dict], dict]


def peer_arguments(case: Case, seed: int) -> list:
    return [f"--case={case.name}", f"--vpns={case.vpns}", f"--flows={case.flows}",
            f"--bottleneck-mbps={case.bottleneck_mbps}", f"--buffer={case.buffer_packets}",
            f"--access-mbps={case.access_mbps}", f"--background-mbps={case.background_mbps}",
            f"--window-bytes={case.window_bytes}",
            f"--delays-ms={','.join(map(str, case.delays_ms))}", f"--seed={seed}"]


def peer_result(_case: Case, _seed: int, document: dict) -> dict:
    return document


def build_ns3() -> None:
    if NS3_PROGRAM.exists() and NS3_PROGRAM.stat().st_mtime > NS3_SOURCE.stat().st_mtime:
        return
    if shutil.which("g++") is None or not pathlib.Path("/usr/include/ns3").is_dir():
        raise BenchError("the ns-3 peer needs the Debian packages g++ and libns3-dev", EXIT_MISSING)
    command = ["g++", "-O3", "-std=c++17", "-Wall", "-Wextra", "-o", NS3_PROGRAM, NS3_SOURCE]
    command += [f"-lns3-{library}" for library in NS3_LIBRARIES]
    if subprocess.run(command).returncode != 0:
        raise BenchError("the ns-3 peer does not build")


def ns3_command(*options: str) -> Callable:
    def command(case: Case, seed: int, _out: pathlib.Path) -> list:
        return [NS3_PROGRAM, *peer_arguments(case, seed), *options]
    return command


def build_ns2() -> None:
    if shutil.which("ns") is None:
        raise BenchError("the ns-2 peer needs the Debian package ns2", EXIT_MISSING)


def ns2_command(case: Case, seed: int, _out: pathlib.Path) -> list:
    return ["ns", NS2_PROGRAM, *peer_arguments(case, seed)]


def netstage_program(path: pathlib.Path) -> Program:
    def build() -> None:
        if not path.exists():
            raise BenchError(f"{path} does not exist: build it (make build), "
                             "or leave it out with --peers ns3,ns2", EXIT_MISSING)

    def command(case: Case, seed: int, out: pathlib.Path) -> list:
        file = TARGET / f"bench-sim-{case.name}.toml"
        file.write_text(scenario(case))
        return [path, "run", file, "--seed", seed, "--out", out, "--json"]

    return Program("netstage", build, command, netstage_result)


def netstage_result(case: Case, seed: int, document: dict) -> dict:
    """Maps what `netstage run --json` prints to RESULT_FIELDS."""
    cell = document["record"]["cells"][0]
    means = {(entry["metric"], entry["subject"]): entry["mean"] for entry in cell["summary"]}
    drops = means["link.drops", "bottleneck.forward"]
    # Drops are the sum over the measured span. Forward, every packet is 1500 bytes, but for a few SYNs.
    sent = means["link.throughput", "bottleneck.forward"] / 12_000 * 45
    return {
        "peer": "netstage",
        "version": document["record"]["tool"],
        "case": case.name,
        "seed": seed,
        "vpn_mbps": [means["vpn.throughput", f"vpn{k + 1}"] / 1e6 for k in range(case.vpns)],
        "delivered_packets": cell["totals"]["delivered_data"],
        "packet_hops": cell["totals"]["packet_hops"],
        "bottleneck_loss": drops / (drops + sent),
        "events": cell["totals"]["events"],
    }


def programs(netstage: pathlib.Path) -> dict:
    linux_reno = ns3_command("--congestion-control=TcpLinuxReno")
    return {program.name: program for program in [
        netstage_program(netstage),
        Program("ns3", build_ns3, ns3_command(), peer_result),
        Program("ns3-linux-reno", build_ns3, linux_reno, peer_result),
        Program("ns2", build_ns2, ns2_command, peer_result),
    ]}


# One run

@dataclasses.dataclass(frozen=True)
class Run:
    program: str
    result: dict
    cpu_seconds: float
    wall_seconds: float
    peak_memory_bytes: int


def resident_peak_kib(pid: int) -> int:
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def wait_measured(process: subprocess.Popen) -> tuple:
    """Exit status, CPU-seconds and peak memory in bytes of a process just started."""
    # ru_maxrss survives exec, so it starts at this interpreter's own size. Below that
    # size the kernel's mark of the new program is sampled, ever more rarely.
    own_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    sampled_kib = 0
    while True:
        sampled_kib = max(sampled_kib, resident_peak_kib(process.pid))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(min(0.1, 0.001 + (time.monotonic() - started) / 50))
    process.returncode = os.waitstatus_to_exitcode(status)
    peak_kib = usage.ru_maxrss if usage.ru_maxrss > own_peak_kib else sampled_kib
    return process.returncode, usage.ru_utime + usage.ru_stime, peak_kib * 1024


def run_once(program: Program, case: Case, seed: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="bench-sim-") as scratch, \
            tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        command = list(map(str, program.command(case, seed, pathlib.Path(scratch) / "record")))
        started = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        status, cpu_seconds, peak_memory_bytes = wait_measured(process)
        wall_seconds = time.monotonic() - started
        output.seek(0)
        errors.seek(0)
        if status != 0:
            raise BenchError(f"{' '.join(command)}\nended with status {status}: "
                             f"{errors.read().decode(errors='replace').strip()}")
        try:
            result = program.result(case, seed, json.loads(output.read()))
            result = {field: result[field] for field in RESULT_FIELDS}
            if len(result["vpn_mbps"]) != case.vpns:
                raise ValueError(f"{len(result['vpn_mbps'])} throughputs for {case.vpns} VPNs")
        except (ValueError, KeyError) as error:
            raise BenchError(f"{' '.join(command)}\nprinted no usable result: {error!r}") from error
    return Run(program.name, result, cpu_seconds, wall_seconds, peak_memory_bytes)


def run_case(case: Case, chosen: list, seeds: list) -> list:
    runs = []
    for seed in seeds:
        # Another program goes first each time, so that none always meets a warm machine.
        shift = (seed - seeds[0]) % len(chosen)
        for program in chosen[shift:] + chosen[:shift]:
            if sys.stderr.isatty():
                print(f"\r\033[K{case.name}: {program.name}, seed {seed}", end="", file=sys.stderr)
            runs.append(run_once(program, case, seed))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return runs


# Comparison

def summarise(runs: list) -> dict:
    """What the runs of one program on one case come to; throughput and loss are means."""
    results = [run.result for run in runs]
    cpu = [run.cpu_seconds for run in runs]
    return {
        "peer": results[0]["peer"],
        "version": results[0]["version"],
        "cpu_seconds_best": min(cpu),
        "cpu_seconds_median": statistics.median(cpu),
        "cpu_ns_per_packet_hop": statistics.median(
            run.cpu_seconds * 1e9 / run.result["packet_hops"] for run in runs),
        "events_per_cpu_second": statistics.median(
            run.result["events"] / run.cpu_seconds for run in runs),
        "peak_memory_bytes": max(run.peak_memory_bytes for run in runs),
        "vpn_mbps": [statistics.mean(seeds) for seeds in zip(*(r["vpn_mbps"] for r in results))],
        "bottleneck_loss": statistics.mean(r["bottleneck_loss"] for r in results),
        "delivered_packets": statistics.mean(r["delivered_packets"] for r in results),
        "packet_hops": statistics.mean(r["packet_hops"] for r in results),
    }


def difference(value: float, base: float) -> float:
    return (value - base) / base if base else 0.0


def delivered_warnings(case: Case, summaries: dict, base: str) -> list:
    warnings = []
    for name, summary in summaries.items():
        off = difference(summary["delivered_packets"], summaries[base]["delivered_packets"])
        if abs(off) > DELIVERED_TOLERANCE:
            warnings.append(f"{case.name}: {name} delivered {off:+.1%} packets against {base}")
    return warnings


def print_table(header: list, rows: list) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        print("  " + "  ".join(cells).rstrip())


def print_case(case: Case, summaries: dict, base: str) -> None:
    print(f"\n{case.name}: {case.describe()}")
    print_table(
        ["", "CPU-s best", "median", f"against {base}", "ns/packet-hop", "events/CPU-s", "peak memory"],
        [[name, f"{s['cpu_seconds_best']:.3f}", f"{s['cpu_seconds_median']:.3f}",
          f"{s['cpu_seconds_median'] / summaries[base]['cpu_seconds_median']:.2f}×",
          f"{s['cpu_ns_per_packet_hop']:.0f}", f"{s['events_per_cpu_second'] / 1e6:.2f} M",
          f"{s['peak_memory_bytes'] / 2**20:.1f} MiB"] for name, s in summaries.items()])
    print(f"\n  Mbit/s received per VPN (IP layer, mean of the seeds) and difference to {base}")
    rows = []
    for name, s in summaries.items():
        row = [name]
        for mbps, base_mbps in zip(s["vpn_mbps"], summaries[base]["vpn_mbps"]):
            row.append(f"{mbps:.2f}" + (f" {difference(mbps, base_mbps):+6.1%}" if name != base else ""))
        delivered = f"{s['delivered_packets']:.0f}"
        if name != base:
            off = difference(s["delivered_packets"], summaries[base]["delivered_packets"])
            delivered += f" {off:+6.2%}"
        rows.append(row + [f"{s['bottleneck_loss']:.3%}", delivered])
    print_table(["", *(f"VPN {i + 1}" for i in range(case.vpns)), "loss", "delivered packets"], rows)


# Machine and files

def machine() -> dict:
    model = platform.processor()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": platform.release(),
            "load_average": [round(load, 2) for load in os.getloadavg()],
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


def print_machine(host: dict) -> None:
    load = " ".join(f"{value:.2f}" for value in host["load_average"])
    print(f"{host['cpu']} × {host['cpus']}, Linux {host['kernel']}, load average {load}, {host['date']}")


def write_json(path: pathlib.Path, document: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def reference_of(case: Case, runs: list) -> dict:
    """What the peers delivered, per seed, and the envelope of all of it."""
    peers = {}
    for run in runs:
        entry = peers.setdefault(run.program, {
            "version": f"{run.result['peer']} {run.result['version']}",
            "seeds": [], "vpn_mbps": [], "bottleneck_loss": [], "delivered_packets": []})
        entry["seeds"].append(run.result["seed"])
        for field in ["vpn_mbps", "bottleneck_loss", "delivered_packets"]:
            entry[field].append(run.result[field])

    def envelope(values: list) -> list:
        return [min(values), max(values)]

    per_vpn = zip(*(run.result["vpn_mbps"] for run in runs))
    return {"settings": dataclasses.asdict(case), "peers": peers, "envelope": {
        "vpn_mbps": [envelope(values) for values in per_vpn],
        "bottleneck_loss": envelope([run.result["bottleneck_loss"] for run in runs]),
        "delivered_packets": envelope([run.result["delivered_packets"] for run in runs]),
    }}


def write_reference(path: pathlib.Path, runs: dict) -> None:
    document = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    for name, of_case in runs.items():
        document["cases"][name] = reference_of(CASES[name], of_case)
    document["cases"] = {name: document["cases"][name] for name in CASES if name in document["cases"]}
    write_json(path, document)


# Command line

def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--case", default=",".join(DEFAULT_CASES),
                        help=f"comma-separated, or all: {', '.join(CASES)} (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, seeds 1..N (default: 3)")
    parser.add_argument("--peers", default="netstage,ns3,ns3-linux-reno,ns2",
                        help="comma-separated; the first is what others are compared to "
                             "(default: %(default)s)")
    parser.add_argument("--netstage", type=pathlib.Path, default=REPOSITORY / "target/release/netstage",
                        help="the program to run as netstage")
    parser.add_argument("--json", type=pathlib.Path, default=TARGET / "bench-sim.json",
                        help="where every run and summary is written (default: bench/target/bench-sim.json)")
    parser.add_argument("--reference", type=pathlib.Path,
                        help="also write throughputs and loss of these runs to this file")
    return parser.parse_args()


def choose(names: str, known: dict, what: str) -> list:
    chosen = list(known) if names == "all" else names.split(",")
    for name in chosen:
        if name not in known:
            raise BenchError(f"unknown {what} {name!r}; known: {', '.join(known)}", EXIT_USAGE)
    return [known[name] for name in chosen]


def main() -> int:
    arguments = parse_arguments()
    cases = choose(arguments.case, CASES, "case")
    chosen = choose(arguments.peers, programs(arguments.netstage), "peer")
    if arguments.runs < 1:
        raise BenchError("--runs must be at least 1", EXIT_USAGE)
    TARGET.mkdir(exist_ok=True)
    for program in chosen:
        program.build()

    host = machine()
    print_machine(host)
    base = chosen[0].name
    runs, summaries, warnings = {}, {}, []
    for case in cases:
        runs[case.name] = run_case(case, chosen, list(range(1, arguments.runs + 1)))
        summaries[case.name] = {
            program.name: summarise([r for r in runs[case.name] if r.program == program.name])
            for program in chosen}
        print_case(case, summaries[case.name], base)
        warnings += delivered_warnings(case, summaries[case.name], base)
        sys.stdout.flush()

    write_json(arguments.json, {
        "machine": host,
        "load_average_at_end": [round(load, 2) for load in os.getloadavg()],
        "compared_to": base,
        "cases": {case.name: dataclasses.asdict(case) for case in cases},
        "runs": [dataclasses.asdict(run) for of_case in runs.values() for run in of_case],
        "summary": summaries,
        "warnings": warnings,
    })
    if arguments.reference:
        write_reference(arguments.reference, runs)
    print(f"\nwritten: {arguments.json}")
    if warnings:
        print("\n*** NOT COMPARABLE: delivered packets differ by more than "
              f"{DELIVERED_TOLERANCE:.0%}, so the costs are not of the same work ***")
        for warning in warnings:
            print(f"***   {warning}")
        return EXIT_EXPECTATION
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"bench-sim: {error}", file=sys.stderr)
        sys.exit(error.status)
    except KeyboardInterrupt:
        sys.exit(130)
