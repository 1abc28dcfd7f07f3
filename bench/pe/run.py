#!/usr/bin/env python3
"""Measures processor and memory use of provider edge routers: Figures 11 to 13 of the I2VFC paper on this machine, and
the engine alone. README.md describes the method."""

import argparse
import json
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = BENCH.parent
TARGET = BENCH / "target" / "pe"
PROGRAM = REPOSITORY / "target/release/netstage"
ENGINE = REPOSITORY / "target/release/pe_rates"
SCENARIO = REPOSITORY / "scenarios/papers/i2vfc/fig11.toml"

RATES = [10, 25, 50, 75, 100]
VPNS = [2, 25, 50, 100]
# Values of the paper: processor seconds in 180 s at 100 Mbit/s and 100 VPNs, megabytes at 100 VPNs.
PAPER_SECONDS, PAPER_INGRESS_MB, PAPER_EGRESS_MB = 10.9, 19.5, 1.55
VOID, EXPECTATION = 5, 3


def run(vpns: int, rate: int, seconds: int) -> dict:
    """Runs real packets; returns the mean of each value by node."""
    folder = TARGET / f"{vpns}-{rate}"
    subprocess.run(["rm", "-rf", folder], check=True)
    folder.mkdir(parents=True)
    record = folder / "record"
    settings = {"scenario.duration": f"{seconds} s", "link.emulator.rate": f"{rate} Mbit/s",
                "vpn.one.count": vpns - vpns // 2, "vpn.two.count": vpns // 2}
    sets = [part for path, value in settings.items() for part in ("--set", f"{path}={value}")]
    done = subprocess.run(
        [PROGRAM, "run", SCENARIO, "--on", "emu", "--retries", "2", "--out", record, *sets],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    # Exit code 1: some connections did not survive the loss of the first seconds.
    if done.returncode not in (0, 1, EXPECTATION, VOID) or not (record / "record.json").exists():
        sys.exit(f"{SCENARIO}, {vpns} VPNs, {rate} Mbit/s: netstage exited with {done.returncode}")
    cell = json.loads((record / "record.json").read_text())["cells"][0]
    found = {(entry["metric"], entry["subject"]): entry["mean"] for entry in cell["summary"]}
    throughput = sum(value for (metric, _), value in found.items() if metric == "vpn.throughput")
    return {
        "vpns": vpns,
        "rate_mbps": rate,
        "void": done.returncode == VOID,
        "carried_mbps": throughput / 1e6,
        **{f"{name}_{side}": found[metric, side]
           for name, metric in [("all", "pe.processor"), ("own", "pe.processor.own"), ("memory", "pe.memory")]
           for side in ("in", "out")},
    }


def line(*columns):
    print("  ".join(f"{column:>12}" for column in columns))


def share(value: float) -> str:
    return f"{100 * value:.2f} %"


def table(title: str, results: list):
    print(f"\n{title}\n")
    line("VPNs", "Mbit/s", "carried", "ingress", "own code", "egress", "own code", "s in 180 s", "ingress MB", "egress MB")
    for r in results:
        line(r["vpns"], r["rate_mbps"], f"{r['carried_mbps']:.1f}" + (" void" if r["void"] else ""),
             share(r["all_in"]), share(r["own_in"]), share(r["all_out"]), share(r["own_out"]),
             f"{180 * r['all_in']:.1f}", f"{r['memory_in'] / 1e6:.1f}", f"{r['memory_out'] / 1e6:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="length of each run")
    parser.add_argument("--rates", type=int, nargs="*", default=RATES, help="Mbit/s, with 100 VPNs")
    parser.add_argument("--vpns", type=int, nargs="*", default=VPNS, help="VPNs, at 100 Mbit/s")
    arguments = parser.parse_args()
    TARGET.mkdir(parents=True, exist_ok=True)

    by_rate = [run(100, rate, arguments.seconds) for rate in arguments.rates]
    table("Figure 11: processor time against the emulator's bandwidth", by_rate)
    known = {(r["vpns"], r["rate_mbps"]): r for r in by_rate}
    by_vpns = [known.get((vpns, 100)) or run(vpns, 100, arguments.seconds) for vpns in arguments.vpns]
    table("Figures 12 and 13: processor time and memory against VPNs", by_vpns)
    print(f"\nPaper, 100 VPNs at 100 Mbit/s: {PAPER_SECONDS} s of 180 s at the ingress (a Pentium 4 at 1.7 GHz), "
          f"{PAPER_INGRESS_MB} MB and {PAPER_EGRESS_MB} MB.")
    full_rate = next((r for r in by_rate if r["rate_mbps"] == 100), None)
    if full_rate:
        print(f"One core would carry {100 / full_rate['all_in']:.0f} Mbit/s of 100 VPNs at the ingress, "
              f"{100 / full_rate['all_out']:.0f} at the egress, if processor time grows with bandwidth.")
    few, many = by_vpns[0], by_vpns[-1]
    if many["vpns"] > few["vpns"]:
        for side in ("in", "out"):
            each = (many[f"all_{side}"] - few[f"all_{side}"]) / (many["vpns"] - few["vpns"])
            supported = many["vpns"] + (1 - many[f"all_{side}"]) / each if each > 0 else float("inf")
            print(f"One core would carry {supported:.0f} VPNs at 100 Mbit/s in total at the "
                  f"{'ingress' if side == 'in' else 'egress'}, if processor time grows with VPNs as from {few['vpns']} to {many['vpns']}.")
    (TARGET / "bench-pe.json").write_text(json.dumps({"rates": by_rate, "vpns": by_vpns}, indent=1))

    print("\nThe engine alone, over rings in memory:\n", flush=True)
    subprocess.run([ENGINE], check=True)


if __name__ == "__main__":
    main()
