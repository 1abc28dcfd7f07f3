"""Application models learned from captures."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netstage import _netstage


@dataclass(frozen=True)
class Fit:
    """Goodness of fit of one quantity."""

    quantity: str
    """Quantity: ``request``, ``response``, ``think``, ``server``, ``up.size``, ``up.gap``, …"""
    unit: str
    """Unit of the mean: ``s``, ``bytes`` or empty."""
    samples: int
    """Samples in the capture."""
    mean: float
    """Mean in the capture."""
    variation: float
    """Coefficient of variation in the capture."""
    autocorrelation: float
    """Correlation of consecutive samples in the capture. Drawn samples are uncorrelated."""
    part: int | None
    """Part of the capture, from 1, that fits the model of the other parts worst; ``None`` if not tested."""
    parts: int | None
    """Number of parts."""
    held_out: int | None
    """Samples in the part."""
    fitted: int | None
    """Samples in the other parts."""
    distance: float | None
    """Kolmogorov–Smirnov distance between the part and the model."""
    limit: float | None
    """Distance that independent samples of one distribution exceed with a probability of at most 1 %."""
    not_tested: str | None
    """Reason why the quantity was not tested."""


class Model:
    """Application model learned from a capture, for ``traffic = { model = "learned", file = … }``."""

    def __init__(self, text: str, subject: str, warnings: list[str]) -> None:
        self._text = text
        self.subject = subject
        """Description of the flow it was learned from."""
        self.warnings = warnings
        """Warnings about the model."""

    @property
    def data(self) -> dict[str, Any]:
        """Contents of the model file (docs/traffic.md), with times in nanoseconds."""
        data: dict[str, Any] = json.loads(self._text)
        return data

    @property
    def fit(self) -> dict[str, Fit]:
        """Goodness of fit, by quantity."""
        fits = {}
        for entry in self.data["fit"]:
            test = entry.pop("held_out")
            tested = test.get("tested") or dict.fromkeys(
                ["part", "parts", "samples", "fitted", "distance", "limit"]
            )
            fits[entry["quantity"]] = Fit(
                **entry,
                held_out=tested.pop("samples"),
                **tested,
                not_tested=test.get("not-tested", {}).get("reason"),
            )
        return fits

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model file, for use in scenarios."""
        Path(path).write_text(self._text, encoding="utf-8")

    def __repr__(self) -> str:
        return f"<netstage.Model of {self.subject}>"


def learn(capture: str | os.PathLike[str], flow: str | None = None) -> Model:
    """Learns an application from a pcap or pcapng capture.

    :param flow: filter of ``tcp``, ``udp``, ``port N`` and ``host ADDRESS``, all of which must match;
        default: the service with the most bytes
    """
    return Model(*_netstage.learn(Path(capture), flow))
