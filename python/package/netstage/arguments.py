"""Validation of arguments."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from netstage.errors import ArgumentError

MAX_JOBS = 65_535
"""Maximum of the program's option ``--jobs``."""

MAX_RETRIES = 2**32 - 1
"""Maximum of the program's option ``--retries``."""


def whole_number(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Returns an integer within bounds. Accepts NumPy's integers, but not booleans."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not minimum <= number <= maximum:
        raise ArgumentError(f"{name}: expected an integer from {minimum} to {maximum}, found {value!r}")
    return number


def several(value: Any) -> list[Any]:
    """Returns one or several values as a list."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def swept(path: str, values: Any) -> list[Any]:
    """Returns the values of a sweep. A single string is rejected, as it is not a list of its letters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ArgumentError(f"vary: {path}: expected a list of values, found {values!r}")
    return list(values)
