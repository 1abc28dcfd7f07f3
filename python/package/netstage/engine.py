"""Engines that execute the runs of a study."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netstage import _netstage
from netstage.errors import ArgumentError, MissingError
from netstage.program import locate
from netstage.progress import Progress, listening

Run = Callable[[bool | Callable[[Progress], object] | None], None]
"""Function that runs a study and reports progress to its argument."""


def run_here(
    checked: _netstage.Checked,
    out: Path,
    *,
    on: str,
    fleet: str | os.PathLike[str] | None,
    jobs: int | None,
    retries: int,
) -> Run:
    """Returns a function that runs the study on threads of this process."""
    if fleet is not None and on != "live":
        raise ArgumentError(f'fleet= requires on="live", found on={on!r}')
    program = find_program() if on == "emu" else None

    def run(progress: bool | Callable[[Progress], object] | None) -> None:
        with listening(progress) as listener:
            _netstage.run(checked, out, on, program, fleet, jobs, retries, listener)

    return run


def run_on_ray(
    checked: _netstage.Checked,
    out: Path,
    source: tuple[Any, ...],
    base: Path | None,
    *,
    on: str,
    jobs: int | None,
    retries: int,
) -> Run:
    """Returns a function that runs the study on a Ray cluster."""
    if on != "sim":
        raise ArgumentError(f'engine="ray" requires on="sim", found on={on!r}')
    try:
        from netstage.cluster import Source, spread
    except ImportError as error:
        raise MissingError(f"Ray is not available ({error})", "pip install ray") from error
    files = {str(name): ((base or Path()) / name).read_bytes() for name in checked.files}
    shared = Source(checked.identity(on), source, files, retries)

    def run(progress: bool | Callable[[Progress], object] | None) -> None:
        with listening(progress) as listener:
            spread(checked, out, shared, jobs, listener)

    return run


def find_program() -> Path:
    """Returns the program of this version: $NETSTAGE, the wheel's own, or the first on PATH."""
    found = locate()
    remedy = "install it, or set $NETSTAGE to its path"
    if not found:
        raise MissingError("the emulator needs the program netstage", remedy)
    try:
        result = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"{found} does not run ({error})", remedy) from error
    version = result.stdout.strip()
    if version != _netstage.TOOL:
        raise MissingError(f"{found} is {version}, but this package is {_netstage.TOOL}", remedy)
    return Path(found)
