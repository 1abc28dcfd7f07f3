#!/usr/bin/env python3
"""Compares the simulator with real packets and with ns-3 on random scenarios.

Each scenario has its own seed and is run several times on both sides. One flow of it, chosen at random, is compared:
its mean throughputs disagree if their 95 % intervals are disjoint and they differ by more than 5 %. Chance alone makes
some intervals disjoint; more of them than the 99.9 % quantile of the binomial distribution are a finding.
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
SIM_RUNS, EMU_RUNS, NS3_RUNS = 6, 3, 4
# Attempts of a run that is void because the machine was busy.
ATTEMPTS = 3


def interval(values: list) -> tuple:
    """Returns the mean and the half width of its 95 % interval."""
    width = STUDENT[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), width


def disjoint(a: list, b: list) -> bool:
    (mean_a, width_a), (mean_b, width_b) = interval(a), interval(b)
    return abs(mean_a - mean_b) > width_a + width_b


def chance(runs_a: int, runs_b: int, draws: int = 50_000) -> float:
    """Returns how often the intervals of equal normal distributions are disjoint."""
    source = random.Random(1)
    sample = lambda runs: [source.gauss(0, 1) for _ in range(runs)]
    return sum(disjoint(sample(runs_a), sample(runs_b)) for _ in range(draws)) / draws


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
        mean_a, mean_b = statistics.mean(a), statistics.mean(b)
        return disjoint(a, b) and abs(mean_a - mean_b) > TOLERANCE * max(mean_a, mean_b)

    def __str__(self) -> str:
        texts = ["{:.4g} ± {:.2g}".format(*(value / 1e3 for value in interval(side))) for side in self.sides]
        ratio = statistics.mean(self.sides[0]) / max(statistics.mean(self.sides[1]), 1e-9)
        return f"{self.name}: {self.flow}: {texts[0]} and {texts[1]} kbit/s, ratio {ratio:.3f}"


# Real packets

def netstage(program: pathlib.Path, file: pathlib.Path, stage: str, seed: int) -> dict | None:
    """Returns the throughputs of a run in bit/s, or None if it was void."""
    with tempfile.TemporaryDirectory(prefix="differ-") as scratch:
        command = [program, "run", file, "--on", stage, "--seed", str(seed), "--json", "--out", f"{scratch}/record"]
        ended = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if not ended.stdout:
        raise SystemExit(f"{file} on {stage}: {ended.stderr.strip()}")
    record = json.loads(ended.stdout)["record"]
    if record["void"]:
        return None
    summary = record["cells"][0]["summary"]
    return {entry["subject"]: entry["mean"] for entry in summary if entry["metric"] == "flow.throughput"}


def compare_emulated(options: argparse.Namespace, seed: int) -> Comparison | None:
    with tempfile.TemporaryDirectory(prefix="differ-") as folder:
        def runs(stage: str, samples: range) -> list:
            found = []
            for sample in samples:
                file = pathlib.Path(folder) / f"{seed}-{sample}.toml"
                file.write_text(subprocess.check_output([options.differ, "draw", str(seed), str(sample)], text=True))
                attempts = (netstage(options.netstage, file, stage, sample) for _ in range(ATTEMPTS))
                found.append(next((result for result in attempts if result), None))
            return found

        emulated = runs("emu", range(1, EMU_RUNS + 1))
        if None in emulated:
            return None
        simulated = runs("sim", range(101, SIM_RUNS + 101))
    flow = random.Random(seed).choice(sorted(emulated[0]))
    sides = tuple([result[flow] for result in side] for side in (simulated, emulated))
    return Comparison(f"emu, seed {seed}", flow, sides)


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


def compare_ns3(options: argparse.Namespace, seed: int) -> Comparison:
    case = dumbbell(seed)
    known = bench_sim.programs(options.netstage)
    vpn = random.Random(seed).randrange(case.vpns)
    sides = []
    for name, runs in (("netstage", SIM_RUNS), ("ns3", NS3_RUNS)):
        results = [bench_sim.run_once(known[name], case, seed=run + 1).result for run in range(runs)]
        sides.append([result["vpn_mbps"][vpn] * 1e6 for result in results])
    return Comparison(f"ns-3, seed {seed}, {case.describe()}", f"VPN {vpn + 1}", tuple(sides))


def compare(name: str, count: int, runs: int, options: argparse.Namespace, one) -> bool:
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
    limit = quantile(len(found), chance(SIM_RUNS, runs))
    print(f"{name}: {disagreeing} of {len(found)} scenarios disagree; by chance at most {limit}", flush=True)
    return disagreeing <= limit and bool(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--emulated", type=int, default=200, help="scenarios with real packets (root)")
    parser.add_argument("--ns3", type=int, default=100, help="dumbbells in ns-3")
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
        agree &= compare("ns-3", options.ns3, NS3_RUNS, options, compare_ns3)
    if options.emulated:
        agree &= compare("emu", options.emulated, EMU_RUNS, options, compare_emulated)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
