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
    """Similarity of the model's samples to the capture, for one quantity."""

    quantity: str
    """Quantity: ``request``, ``response``, ``think``, ``server``, ``up.size``, ``up.gap``, …"""
    unit: str
    """Unit of the means: ``s``, ``bytes`` or empty."""
    samples: int
    """Samples in the capture."""
    mean: float
    """Mean in the capture."""
    mean_drawn: float
    """Mean of samples drawn from the model."""
    distance: float
    """Kolmogorov–Smirnov distance between the two."""
    distance_at_1_percent: float
    """Distance that two samples of the same distribution exceed with a probability of 1 %."""


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
        """Similarity of the model to the capture, by quantity."""
        fields = Fit.__dataclass_fields__
        return {
            entry["quantity"]: Fit(**{name: entry[name] for name in fields}) for entry in self.data["fit"]
        }

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
