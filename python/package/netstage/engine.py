"""Where a study's runs take place."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from netstage import _netstage
from netstage.errors import ArgumentError, MissingError
from netstage.progress import Progress, listening

Run = Callable[[bool | Callable[[Progress], object] | None], None]
"""Runs a study, telling its argument how far it is."""


def run_here(
    checked: _netstage.Checked,
    out: Path,
    *,
    on: str,
    fleet: str | os.PathLike[str] | None,
    jobs: int | None,
    retries: int,
) -> Run:
    """On threads of this process."""
    if fleet is not None and on != "live":
        raise ArgumentError(f'fleet= goes with on="live", and this is on={on!r}')
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
    """On the machines of a Ray cluster."""
    if on != "sim":
        raise ArgumentError(f'engine="ray" spreads simulations; on={on!r} needs a machine to itself')
    try:
        from netstage.cluster import Source, spread
    except ImportError as error:
        raise MissingError(f"Ray cannot be used ({error})", "pip install ray") from error
    files = {str(name): ((base or Path()) / name).read_bytes() for name in checked.files}
    needed = Source(checked.identity(on), source, files, retries)

    def run(progress: bool | Callable[[Progress], object] | None) -> None:
        with listening(progress) as listener:
            spread(checked, out, needed, jobs, listener)

    return run


def find_program() -> Path:
    """The program ``netstage`` of this version: $NETSTAGE, or the one on the path."""
    found = os.environ.get("NETSTAGE") or shutil.which("netstage")
    remedy = "install it, or name it in the environment as NETSTAGE"
    if not found:
        raise MissingError("the emulated stage needs the program netstage", remedy)
    try:
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"{found} does not run ({error})", remedy) from error
    if said != _netstage.TOOL:
        raise MissingError(f"{found} is {said}, and this package is {_netstage.TOOL}", remedy)
    return Path(found)
