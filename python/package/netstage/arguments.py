"""What callers pass, held to what it can be."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from netstage.errors import ArgumentError

MOST_JOBS = 65_535
"""As many as the program takes."""

MOST_RETRIES = 2**32 - 1
"""As many as the program takes."""


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """A whole number within bounds; NumPy's are such, True is not."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise ArgumentError(f"{name} is a whole number from {least} to {most}, found {value!r}")
    return number


def several(value: Any) -> list[Any]:
    """One value or several, as a list."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def swept(path: str, values: Any) -> list[Any]:
    """The values a path is swept over: a lone text is no list of its letters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ArgumentError(f"vary: {path} takes a list of values, found {values!r}")
    return list(values)
