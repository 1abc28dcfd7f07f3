#!/usr/bin/env python3
"""Compares the simulator with real packets and with ns-3 on random scenarios.

Each scenario has its own seed and is run several times on both sides. Of a random network, one flow is compared,
chosen at random: its mean throughputs disagree if their 95 % intervals are disjoint and they differ by more than 5 %.
Chance alone makes some intervals disjoint; more of them than the 99.9 % quantile of the binomial distribution are a
finding. Of a chain of bottlenecks, all flows are compared: the simulator agrees if its mean is within the 95 % interval
of real packets or within 5 % of their mean.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench/sim"))
import run as bench_sim  # noqa: E402

TOLERANCE = 0.05
# Two-sided 95 % quantiles of Student's t, by degrees of freedom.
STUDENT = [math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]
SIM_RUNS, EMU_RUNS, NS3_RUNS = 6, 3, 10
# Repetitions of runs that are void because the machine was busy.
RETRIES = 4


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean and its 95 % interval."""

    value: float
    low: float
    high: float

    def disjoint(self, other: "Mean") -> bool:
        return self.low > other.high or other.low > self.high

    def near(self, other: "Mean") -> bool:
        return abs(self.value - other.value) <= TOLERANCE * max(self.value, other.value)

    def __str__(self) -> str:
        return f"{self.value / 1e3:.4g} ± {(self.high - self.low) / 2e3:.2g}"


def mean(values: list) -> Mean:
    width = STUDENT[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    value = statistics.mean(values)
    return Mean(value, value - width, value + width)


def chance(runs_a: int, runs_b: int, draws: int = 50_000) -> float:
    """Returns how often the intervals of equal normal distributions are disjoint."""
    source = random.Random(1)
    sample = lambda runs: mean([source.gauss(0, 1) for _ in range(runs)])
    return sum(sample(runs_a).disjoint(sample(runs_b)) for _ in range(draws)) / draws


def quantile(count: int, probability: float) -> int:
    """Returns the smallest number that a binomial variable exceeds with a probability of at most 0.1 %."""
    below, exactly = 0.0, (1 - probability) ** count
    for successes in range(count + 1):
        below += exactly
        if below >= 0.999:
            return successes
        exactly *= (count - successes) / (successes + 1) * probability / (1 - probability)
    return count


@dataclasses.dataclass(frozen=True)
class Comparison:
    name: str
    flow: str
    sides: tuple

    def disagrees(self) -> bool:
        a, b = self.sides
        return a.disjoint(b) and not a.near(b)

    def ratio(self) -> float:
        return self.sides[0].value / max(self.sides[1].value, 1e-9)

    def __str__(self) -> str:
        a, b = self.sides
        return f"{self.name}: {self.flow}: {a} and {b} kbit/s, ratio {self.ratio():.3f}"


# Real packets

def netstage(options: argparse.Namespace, kind: str, seed: int, stage: str, runs: int) -> dict | None:
    """Returns the throughput per flow of a drawn scenario in bit/s, and under "lost" the share of packets lost; None if a
    run was void."""
    with tempfile.TemporaryDirectory(prefix="differ-") as scratch:
        file = pathlib.Path(scratch) / f"{kind}-{seed}.toml"
        file.write_text(subprocess.check_output([options.differ, kind, str(seed)], text=True))
        command = [options.netstage, "run", file, "--on", stage, "--repeat", str(runs), "--retries", str(RETRIES),
                   "--json", "--out", f"{scratch}/record"]
        ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    answer = json.loads(ended.stdout or "{}")
    if "record" not in answer:
        raise SystemExit(f"{kind} {seed} on {stage}: {answer or ended.stderr.strip()}")
    record = answer["record"]
    if record["void"]:
        return None
    cell = record["cells"][0]
    entries = [entry for entry in cell["summary"] if entry["metric"] == "flow.throughput"]
    exact = lambda entry, field: entry.get(field, entry["mean"])
    flows = {entry["subject"]: Mean(entry["mean"], exact(entry, "low"), exact(entry, "high")) for entry in entries}
    return flows | {"lost": cell["totals"]["lost"] / cell["totals"]["sent"]}


def compare_emulated(options: argparse.Namespace, seed: int) -> Comparison | None:
    emulated = netstage(options, "draw", seed, "emu", EMU_RUNS)
    if emulated is None:
        return None
    simulated = netstage(options, "draw", seed, "sim", SIM_RUNS)
    flow = random.Random(seed).choice(sorted(emulated.keys() - {"lost"}))
    return Comparison(f"emu, seed {seed}", flow, (simulated[flow], emulated[flow]))


# Chains of bottlenecks

def compare_chains(options: argparse.Namespace) -> bool:
    """Prints a table of all flows of the chains, drawn until enough of them lose few packets in the simulator. Returns
    whether 19 of 20 agree."""
    print("| seed | lost | flows | real packets, kbit/s | simulator, kbit/s | ratio | agrees |")
    print("| --: | --: | :-- | --: | --: | --: | :-- |")
    agreeing, flows_agreeing, skipped, seed = [], [], 0, options.seed
    while len(agreeing) < options.chains:
        simulated = netstage(options, "chain", seed, "sim", SIM_RUNS)
        lost, verdicts = simulated.pop("lost"), []
        emulated = netstage(options, "chain", seed, "emu", EMU_RUNS) if lost <= options.max_lost else {}
        if emulated is None:
            print(f"| {seed} | | | void | | | |", flush=True)
        for flow, ours in sorted(simulated.items()) if emulated else []:
            real = emulated[flow]
            verdicts.append(real.low <= ours.value <= real.high or ours.near(real))
            ratio, mark = Comparison("", flow, (ours, real)).ratio(), "yes" if verdicts[-1] else "**no**"
            print(f"| {seed} | {lost:.1%} | {flow} | {real} | {ours} | {ratio:.3f} | {mark} |", flush=True)
        agreeing += [all(verdicts)] if verdicts else []
        flows_agreeing += verdicts
        skipped += lost > options.max_lost
        seed += 1
    print(f"\n{sum(agreeing)} of {len(agreeing)} chains agree in all flows, {sum(flows_agreeing)} of "
          f"{len(flows_agreeing)} groups of flows. {skipped} other chains lost more than {options.max_lost:.0%} of the "
          "packets.", flush=True)
    return sum(agreeing) >= 0.95 * len(agreeing)


# ns-3

def dumbbell(seed: int) -> bench_sim.Case:
    """Draws a dumbbell with several groups of TCP flows and Poisson background."""
    source = random.Random(seed)
    vpns, rate = source.randint(1, 4), source.randint(2, 12)
    return bench_sim.Case(
        f"differ-{seed}", vpns=vpns, flows=source.randint(1, 4), bottleneck_mbps=rate,
        buffer_packets=source.randint(10, 150), access_mbps=source.choice([100, 1000]),
        background_mbps=source.randint(1, rate // 2), window_bytes=1024 * source.choice([16, 64, 256]),
        delays_ms=tuple(source.randint(1, 80) for _ in range(vpns)))


def off_phase(case: bench_sim.Case, source: random.Random) -> bench_sim.Case:
    """Returns the case with delays longer by up to a packet's time at the bottleneck. The phases of a full queue that favor
    a flow then differ from run to run in both simulators."""
    packet_ms = 12 / case.bottleneck_mbps
    return dataclasses.replace(
        case, delays_ms=tuple(round(delay + source.uniform(0, packet_ms), 4) for delay in case.delays_ms))


def compare_ns3(options: argparse.Namespace, seed: int) -> Comparison:
    case = dumbbell(seed)
    known = bench_sim.programs(options.netstage)
    vpn = random.Random(seed).randrange(case.vpns)
    source = random.Random(seed)
    sides = []
    for name, runs in (("netstage", NS3_RUNS), (options.ns3_program, NS3_RUNS)):
        cases = [off_phase(case, source) for _ in range(runs)]
        results = [bench_sim.run_once(known[name], one, seed=run + 1).result for run, one in enumerate(cases)]
        sides.append(mean([result["vpn_mbps"][vpn] * 1e6 for result in results]))
    return Comparison(f"ns-3, seed {seed}, {case.describe()}", f"VPN {vpn + 1}", tuple(sides))


def compare(name: str, count: int, runs: tuple, options: argparse.Namespace, one) -> bool:
    """Compares scenarios and prints those that disagree. Returns whether they are no more than by chance."""
    found = []
    for seed in range(options.seed, options.seed + count):
        comparison = one(options, seed)
        if comparison is None:
            print(f"{name}, seed {seed}: void, because the machine was busy")
            continue
        found.append(comparison)
        if comparison.disagrees() or options.all:
            print(comparison, flush=True)
    disagreeing = sum(comparison.disagrees() for comparison in found)
    limit = quantile(len(found), chance(*runs))
    print(f"{name}: {disagreeing} of {len(found)} scenarios disagree; by chance at most {limit}", flush=True)
    return disagreeing <= limit and bool(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--emulated", type=int, default=200, help="scenarios with real packets (root)")
    parser.add_argument("--chains", type=int, default=20, help="chains of bottlenecks with real packets (root)")
    parser.add_argument("--max-lost", type=float, default=0.01, help="share of packets that such a chain may lose")
    parser.add_argument("--ns3", type=int, default=100, help="dumbbells in ns-3")
    parser.add_argument("--ns3-program", default="ns3-linux-reno", choices=["ns3", "ns3-linux-reno"],
                        help="TCP of ns-3; NewReno counts ACKs where netstage counts bytes, so it disagrees")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="first seed")
    parser.add_argument("--all", action="store_true", help="print every comparison")
    parser.add_argument("--netstage", type=pathlib.Path, default=REPOSITORY / "target/release/netstage")
    parser.add_argument("--differ", type=pathlib.Path, default=REPOSITORY / "target/release/netstage-differ")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    agree = True
    if options.ns3:
        bench_sim.TARGET.mkdir(exist_ok=True)
        bench_sim.build_ns3()
        agree &= compare("ns-3", options.ns3, (NS3_RUNS, NS3_RUNS), options, compare_ns3)
    if options.chains:
        agree &= compare_chains(options)
    if options.emulated:
        agree &= compare("emu", options.emulated, (SIM_RUNS, EMU_RUNS), options, compare_emulated)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
