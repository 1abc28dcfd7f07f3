"""The ``netstage`` program that belongs to this package."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path


def locate() -> str | None:
    """Returns the path of the program: $NETSTAGE, the wheel's own, or the first on PATH."""
    return os.environ.get("NETSTAGE") or installed() or shutil.which("netstage")


def installed() -> str | None:
    """Returns the path of the program in the wheel, or ``None`` if the package was built without it."""
    try:
        paths = [
            Path(str(file.locate()))
            for file in files("netstage") or []
            if file.parts[-2:] == ("bin", "netstage")
        ]
    except PackageNotFoundError:
        paths = []
    # `pip install --target` moves the program without updating the list of files.
    paths.append(Path(__file__).parents[1] / "bin" / "netstage")
    return next((str(path.resolve()) for path in paths if os.access(path, os.X_OK)), None)
