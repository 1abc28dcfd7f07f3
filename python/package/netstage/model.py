"""Applications learned from captures."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netstage import _netstage


@dataclass(frozen=True)
class Fit:
    """How well samples drawn from a model resemble the capture, in one quantity."""

    quantity: str
    """Of what: ``request``, ``response``, ``think``, ``server``, ``up.size``, ``up.gap``, …"""
    unit: str
    """Unit of the means: ``s``, ``bytes`` or none."""
    samples: int
    """Samples in the capture."""
    mean: float
    """Mean in the capture."""
    mean_drawn: float
    """Mean of samples drawn from the model."""
    distance: float
    """Kolmogorov–Smirnov distance between the two."""
    distance_at_1_percent: float
    """The distance that two samples of one distribution exceed in one case of a hundred."""


class Model:
    """An application as a capture shows it, for ``traffic = { model = "learned", file = … }``."""

    def __init__(self, text: str, subject: str, warnings: list[str]) -> None:
        self._text = text
        self.subject = subject
        """Whom it was learned from, in words."""
        self.warnings = warnings
        """What to know before trusting it."""

    @property
    def data(self) -> dict[str, Any]:
        """The model file, as docs/traffic.md describes it; times are nanoseconds."""
        data: dict[str, Any] = json.loads(self._text)
        return data

    @property
    def fit(self) -> dict[str, Fit]:
        """How well the model resembles the capture, by quantity."""
        fields = Fit.__dataclass_fields__
        return {
            entry["quantity"]: Fit(**{name: entry[name] for name in fields}) for entry in self.data["fit"]
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model file, which scenarios below its folder may name."""
        Path(path).write_text(self._text, encoding="utf-8")

    def __repr__(self) -> str:
        return f"<netstage.Model of {self.subject}>"


def learn(capture: str | os.PathLike[str], flow: str | None = None) -> Model:
    """Learns an application from a pcap or pcapng capture.

    :param flow: ``tcp``, ``udp``, ``port N``, ``host ADDRESS``, several of which must all hold; the
        service with the most bytes unless said
    """
    return Model(*_netstage.learn(Path(capture), flow))
