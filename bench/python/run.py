#!/usr/bin/env python3
"""Measures the overhead of the Python package, and a sweep by Ray compared with threads.

    bench/python/run.py [cost] [ray] [--print]

Writes a table for each into docs/python.md, or prints it. `make bench-python` runs it with python/.venv; NETSTAGE names
the program. Rounds alternate, and the minimum counts: on a shared machine, other load only adds time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from results import mark, table  # noqa: E402

PAGE = ROOT / "docs/python.md"
ROUNDS = {"cost": 3, "ray": 2}

IN_PYTHON = """
import resource, sys
import netstage
scenario = netstage.Scenario.load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF)
scenario.run(repeat=int(sys.argv[2]), jobs=1, out=sys.argv[3], progress=lambda progress: None)
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
"""


def cost(folder: Path) -> str:
    """Compares the CPU time of the same study by the program and by Python, excluding the import."""
    scenario, repeat = str(ROOT / "scenarios/papers/i2vfc/fig2.toml"), "80"
    program, python = [], []
    for round_number in range(ROUNDS["cost"]):
        out = str(folder / f"program-{round_number}")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [os.environ["NETSTAGE"], "run", scenario, "--repeat", repeat, "--jobs", "1", "--out", out]
        # A failed expectation of the paper under these seeds does not matter here.
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        program.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        out = str(folder / f"python-{round_number}")
        output = subprocess.run(
            [sys.executable, "-c", IN_PYTHON, scenario, repeat, out],
            capture_output=True,
            text=True,
            check=True,
        )
        python.append(float(output.stdout))
    program_file, python_file = Path(folder, "program-0/series.parquet"), Path(folder, "python-0/series.parquet")
    assert program_file.read_bytes() == python_file.read_bytes(), "the results of program and Python differ"
    share = min(python) / min(program)
    rows = [
        ["`netstage run --jobs 1`", f"{min(program):.2f} s", "1", rounds(program)],
        ["`Scenario.run(jobs=1)`", f"{min(python):.2f} s", f"{share:.4f}", rounds(python)],
    ]
    return table(["240 runs of Figure 2, one at a time", "CPU time", "relative", "rounds"], rows)


def spread(folder: Path) -> str:
    """Compares a sweep of 1,000 cells by threads and by a running Ray cluster."""
    import netstage
    import ray

    cores = os.cpu_count() or 1
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    scenario = netstage.Scenario.load(ROOT / "scenarios/examples/fair-two-vpns.toml")
    vary = {
        "vpn.gold.weight": [1, 2],
        "link.bottleneck.delay": [f"{delay / 10} ms" for delay in range(10, 510)],
    }
    # Start the workers before the measurement.
    scenario.run(vary={"vpn.gold.weight": range(1, 2 * cores + 1)}, out=folder / "warm", engine="ray")
    times_by_engine: dict[str, list[float]] = {"local": [], "ray": []}
    cpu: dict[str, list[float]] = {"local": [], "ray": []}
    for round_number in range(ROUNDS["ray"]):
        for engine, times in times_by_engine.items():
            started, before = time.monotonic(), family_cpu()
            scenario.run(vary=vary, out=folder / f"{engine}-{round_number}", engine=engine, jobs=cores)
            times.append(time.monotonic() - started)
            cpu[engine].append(family_cpu() - before)
    ray.shutdown()
    series = {(folder / f"{engine}-0/series.parquet").read_bytes() for engine in times_by_engine}
    assert len(series) == 1, "the results of threads and Ray differ"
    min_time, min_cpu = ({engine: min(times) for engine, times in values.items()} for values in (times_by_engine, cpu))
    rows = [
        [
            f'`engine="{engine}"`',
            f"{min_time[engine]:.1f} s",
            f"{min_time['local'] / min_time[engine]:.3f}",
            rounds(times_by_engine[engine]),
            f"{min_cpu[engine]:.1f} s",
            rounds(cpu[engine]),
        ]
        for engine in times_by_engine
    ]
    head = [f"1,000 cells on {cores} cores", "time", "rate relative to threads", "rounds"]
    return table([*head, "CPU time, all processes", "rounds"], rows)


def family_cpu() -> float:
    """Returns the CPU seconds of this process and its descendants, including Ray's daemons and workers."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        used[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def is_descendant(process: int) -> bool:
        while process not in (0, os.getpid()):
            process = parents.get(process, 0)
        return process != 0

    return sum(seconds for process, seconds in used.items() if is_descendant(process))


def rounds(times: list[float]) -> str:
    return ", ".join(f"{seconds:.2f}" for seconds in times) + " s"


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    selected = [name for name in sys.argv[1:] if name != "--print"] or ["cost", "ray"]
    for name, measure in {"cost": cost, "ray": spread}.items():
        if name not in selected:
            continue
        before = load()
        with tempfile.TemporaryDirectory() as folder:
            result = measure(Path(folder))
        result += f"\nLoad of the machine: {before} before, {load()} after, including this benchmark.\n"
        print(result)
        if "--print" not in sys.argv:
            mark(PAGE, name, result)
