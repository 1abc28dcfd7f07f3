"""netstage stages a network, proves how it performs, and keeps it fair.

>>> import netstage
>>> scenario = netstage.Scenario.load("fig2.toml")
>>> record = scenario.run(repeat=3)
>>> record.to_pandas(metric="fairness.inter_vpn")

A :class:`Scenario` corresponds to a scenario file. :meth:`Scenario.run` writes a :class:`Record`, a folder
that is identical to that of ``netstage run``.
"""

from netstage._netstage import TOOL, schema
from netstage.errors import (
    ArgumentError,
    CaptureError,
    Error,
    FolderError,
    InterruptedStudy,
    MissingError,
    Problem,
    RecordError,
    RunError,
    ScenarioError,
)
from netstage.model import Fit, Model, learn
from netstage.progress import Progress
from netstage.record import Comparison, Expectation, Figure, Figures, Metric, Record, compare
from netstage.scenario import Cell, Check, Scenario

__version__ = TOOL.removeprefix("netstage ")

__all__ = [
    "ArgumentError",
    "CaptureError",
    "Cell",
    "Check",
    "Comparison",
    "Error",
    "Expectation",
    "Figure",
    "Figures",
    "Fit",
    "FolderError",
    "InterruptedStudy",
    "Metric",
    "MissingError",
    "Model",
    "Problem",
    "Progress",
    "Record",
    "RecordError",
    "RunError",
    "Scenario",
    "ScenarioError",
    "__version__",
    "compare",
    "learn",
    "schema",
]
