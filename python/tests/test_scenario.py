"""Tests of scenarios: loading, construction, edits, checks."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import netstage
from conftest import LINE, ROOT


def test_a_scenario_built_in_code_runs_like_its_text() -> None:
    built = netstage.Scenario(
        {
            "scenario": {"title": "One line", "duration": "3 s"},
            "node": {"a": {}, "b": {}},
            "link": {"line": {"ends": ("a", "b"), "rate": "10 Mbit/s", "delay": "5 ms"}},
            "flow": {"up": {"from": "a", "to": "b"}},
        }
    )
    assert built.check().title == "One line"
    same = netstage.Scenario.from_text(built.text)
    assert built.run(out="built").data["series"] == same.run(out="text").data["series"]


def test_paths_are_read_and_set(line: netstage.Scenario) -> None:
    assert line["link.line.rate"] == "10 Mbit/s"
    assert line["link.line.ends.1"] == "b"
    line["link.*.delay"] = "50 ms"
    line["flow.down"] = {"from": "b", "to": "a"}
    assert line["link.line.delay"] == "50 ms"
    assert list(line.tables()["flow"]) == ["up", "down"]
    with pytest.raises(KeyError, match=r"flow\.sideways"):
        line["flow.sideways"]
    assert "flow.up" in line and "flow.sideways" not in line
    untouched = line.copy()
    untouched["link.line.delay"] = "1 ms"
    assert line["link.line.delay"] == "50 ms"


def test_problems_have_line_and_column() -> None:
    text = LINE.replace('rate = "10 Mbit/s"', 'rte = "10 Mbit/s"').replace('to = "b"', 'to = "c"')
    with pytest.raises(netstage.ScenarioError) as caught:
        netstage.Scenario.from_text(text, name="line.toml").check()
    places = [(p.file, p.line, p.column, p.help) for p in caught.value.problems]
    assert ("line.toml", 11, 1, "did you mean `rate`?") in places
    assert ("line.toml", 17, 6, "available: a, b") in places
    assert "line.toml:11:1" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_an_invalid_edit_is_reported_and_can_be_reverted(line: netstage.Scenario) -> None:
    line["link.line.dely"] = "5 ms"
    with pytest.raises(netstage.ScenarioError, match="did you mean `delay`") as caught:
        line.check()
    assert caught.value.problems[0].file == "command line"
    del line.edits["link.line.dely"]
    line.check()


def test_a_single_string_is_not_a_list_of_values(line: netstage.Scenario) -> None:
    for values in ("5 ms", 5, {"a": 1}, None):
        with pytest.raises(netstage.ArgumentError, match=r"line\.delay: expected a list of values, found"):
            line.check(vary={"link.line.delay": values})  # type: ignore[dict-item]
    with pytest.raises(netstage.ScenarioError, match=r"duplicate value in the sweep of `flow\.up\.count`"):
        line.check(vary={"flow.up.count": [1, 2, 1]})


def test_a_seed_argument_overrides_an_edit(line: netstage.Scenario) -> None:
    line.update({"scenario.seed": 5, "scenario.repeat": 7})
    assert line.check().seeds == range(5, 12)
    assert line.check(seed=1, set={"scenario.seed": 9}, repeat=2).seeds == range(1, 3)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_independent_and_find_their_files(
    copied: Callable[[netstage.Scenario], netstage.Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = ROOT / "scenarios/examples"
    monkeypatch.chdir(examples)
    loaded = netstage.Scenario.load("traffic-patterns.toml")
    from_text = netstage.Scenario.from_text(loaded.text, base="")
    built = netstage.Scenario(loaded.tables())
    monkeypatch.chdir("/")
    for scenario in (loaded, from_text, built):
        scenario["measure"] = {"interval": "2 s"}
        other = copied(scenario)
        other["scenario.title"] = "Another"
        other.edits["measure"]["interval"] = "1 s"
        assert other.check().title == "Another" != scenario.check().title
        assert scenario["measure.interval"] == "2 s"
        assert other._checked().files == [Path("traffic-patterns.csv")]


def test_a_scenario_can_be_pickled(line: netstage.Scenario) -> None:
    line["flow.up.count"] = 2
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        record = pool.submit(line.run, out="there").result()
        assert record.expectations == line.run(out="here").expectations
        with pytest.raises(netstage.ScenarioError, match="did you mean `delay`") as caught:
            pool.submit(line.check, set={"link.line.dely": "5 ms"}).result()
    assert caught.value.problems[0].file == "command line"


@pytest.mark.parametrize(
    "error",
    [
        netstage.ScenarioError("wrong", [("a.toml", 1, 2, "wrong", None)]),
        netstage.MissingError("no Ray", "pip install ray"),
        netstage.FolderError("taken"),
    ],
)
def test_errors_can_be_pickled(error: netstage.Error) -> None:
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_values_not_allowed_in_a_scenario_are_rejected(line: netstage.Scenario) -> None:
    line["link.line.delay"] = object()
    with pytest.raises(TypeError, match="not allowed in a scenario"):
        line.check()
    with pytest.raises(TypeError):
        netstage.Scenario({"scenario": {"title": None}})
    with pytest.raises(TypeError, match="from_text"):
        netstage.Scenario("line.toml")  # type: ignore[arg-type]


def test_swept_values_make_cells(line: netstage.Scenario) -> None:
    numpy = pytest.importorskip("numpy")
    check = line.check(
        seed=7,
        repeat=3,
        vary={"flow.up.count": numpy.arange(1, 3), "link.line.loss": (0.0, numpy.float64(0.01))},
    )
    assert check.seeds == range(7, 10)
    assert [list(cell.settings.values()) for cell in check.cells] == [
        ["1", "0"],
        ["1", "0.01"],
        ["2", "0"],
        ["2", "0.01"],
    ]
    assert {cell.duration_s for cell in check.cells} == {3.0}
    assert (check.expectations, check.figures) == (["used"], ["shares"])


def test_files_of_a_scenario_are_relative_to_its_folder() -> None:
    scenario = netstage.Scenario.load(ROOT / "scenarios/examples/traffic-patterns.toml")
    assert scenario.name == "traffic-patterns"
    assert scenario._checked().files == [Path("traffic-patterns.csv")]
    nowhere = netstage.Scenario.from_text(scenario.text)
    with pytest.raises(
        netstage.ScenarioError, match="trace files need a scenario that is loaded from a file"
    ):
        nowhere.check()


def test_a_missing_file_is_reported() -> None:
    with pytest.raises(FileNotFoundError):
        netstage.Scenario.load("nowhere.toml")


def test_a_file_that_is_not_text_is_rejected() -> None:
    Path("latin.toml").write_bytes('[scenario]\ntitle = "Köln"\n'.encode("latin-1"))
    with pytest.raises(netstage.ScenarioError, match=r"latin\.toml: the file is not UTF-8 text \(line 2\)"):
        netstage.Scenario.load("latin.toml")


def test_windows_line_endings_are_accepted() -> None:
    Path("line.toml").write_bytes(LINE.replace("\n", "\r\n").encode())
    scenario = netstage.Scenario.load("line.toml")
    assert scenario.text == LINE.replace("\n", "\r\n")

    def places(text: str) -> list[tuple[int, int]]:
        with pytest.raises(netstage.ScenarioError) as caught:
            netstage.Scenario.from_text(text.replace("rate", "rte")).check()
        return [(problem.line, problem.column) for problem in caught.value.problems]

    assert places(LINE.replace("\n", "\r\n")) == places(LINE)


def test_the_schema_is_that_of_the_documentation() -> None:
    assert netstage.schema().strip() == (ROOT / "docs/scenario.schema.json").read_text().strip()
