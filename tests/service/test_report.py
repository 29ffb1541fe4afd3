"""`ringsmith report` over real record files: figures, formats, and that no text of a model's becomes markup."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import runs
from harness.types import Ratio
from runs.report.formats import shown
from runs.report.table import Column
from runs.sweep import Plan
from runs.sweep_record import sweep_record
from service.cli import USAGE, main
from tests.runs.factories import config
from tests.runs.record_sets import write_set

EXAMPLES = Path(runs.__file__).parent / "examples"
EVIL = '=<script>alert("$x$")</script>|`*\\'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    write_set(folder, models=("maker/good", EVIL), problems=(1, 2, 13), samples=3, steps=4, seed=5)
    return folder


def written(capsys, *arguments: str) -> str:
    assert main(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))


def test_models_without_a_price_are_compared_by_what_their_evaluations_took(root, tmp_path, capsys) -> None:
    for records, cost, other in [(root, "USD", "device-seconds"), (EXAMPLES, "device-seconds", "USD")]:
        written(capsys, records, "--out", tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text()
        assert f"{cost} used by a run" in text and f"{other} used by a run" not in text


def test_one_page_without_network_or_foreign_scripts(root, tmp_path, capsys) -> None:
    out = tmp_path / "page.html"
    written(capsys, root, "--out", out)
    text = out.read_text()
    page = Page()
    page.feed(text)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1 and tags.count("svg") == 5 and tags.count("table") == 8
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "script-src 'sha256-" in text
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    # Every link of a plot's point leads to a run's line, and no id is there twice.
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    lines = {name for name in ids if name.startswith("run-")}
    assert lines and {link[1:] for link in re.findall(r'<a href="(#run-[^"]+)"', text)} <= lines
    named = [name for name in ids if not re.fullmatch(r"[mpC][0-9a-f_]+", name)]  # matplotlib's own are of the content
    assert len(named) == len(set(named))
    assert not re.search(r"#010[23]", text)  # all colours are the page's


def test_json_has_every_row_and_the_figures_that_follow_from_them(root, capsys) -> None:
    found = json.loads(written(capsys, root, "--format", "json"))
    rows = [row for row in found["rows"] if row["outcome"] == "sample"]
    assert len(rows) == 18 and len(found["rows"]) == 20 and len(found["tables"]["left_out"]) == 2
    assert found["k"] == [1, 3] and found["fast"]["p"] == 1.0 and len(found["problems"]) == 3
    for line in found["tables"]["summary"]:
        of = [row for row in rows if row["configuration"] == line["configuration"]]
        right = [row for row in of if row["verdict"] == "passed"]
        fast = [row for row in right if row["device"]["low"] > 1.0]
        assert line["pass@1"]["value"] == pytest.approx(len(right) / 9)
        assert line["fast1@1"]["value"] == pytest.approx(len(fast) / 9)
        assert line["pass@3"]["value"] == pytest.approx(len({row["config"]["problem"] for row in right}) / 3)
        assert (line["samples"], line["faults"], line["short"]) == (9, 1, 0)
    assert {line["model"] for line in found["tables"]["models"]} >= {"maker/good", "GPT-5.5 (published)"}


@pytest.mark.parametrize(
    ("flags", "at"),
    [
        (("-k", "1"), {"correct@1": 28, "correct@3": 36, "fast1@1": 22, "fast1@3": 27}),
        (("-k", "2"), {"correct@1": 28, "correct@2": None, "correct@3": 36, "fast1@1": 22, "fast1@3": 27}),
        (("-p", "2"), {"correct@1": 28, "correct@3": 36, "fast2@1": None, "fast2@3": None}),
    ],
)
def test_published_figures_stand_under_the_samples_and_the_p_that_they_are_of(root, capsys, flags, at) -> None:
    lines = json.loads(written(capsys, root, "--format", "json", *flags))["tables"]["models"]
    theirs, ours = next(line for line in lines if line["model"] == "GPT-5.5 (published)"), lines[0]
    assert {name: theirs[name] for name in at} == at
    assert (ours["correct@3"] is None) == ("-k" in flags) and ours["correct@1"] > 0
    header = written(capsys, root, "--format", "csv", "--table", "models", *flags).splitlines()[0].split(",")
    assert len(header) == len(set(header))


@pytest.mark.parametrize("table", ["left_out", "head_to_head"])
def test_a_table_that_holds_nothing_can_be_asked_for(capsys, table) -> None:
    one = next(EXAMPLES.glob("*/events.jsonl")).parent
    assert table not in json.loads(written(capsys, one, "--format", "json"))["tables"]
    assert len(written(capsys, one, "--format", "csv", "--table", table).splitlines()) == 1


def test_p_figure_margin_and_raw_decide_what_is_fast(root, capsys) -> None:
    def fast(*flags: str) -> float:
        summary = json.loads(written(capsys, root, "--format", "json", *flags))["tables"]["summary"]
        return sum(
            value["value"] for line in summary for name, value in line.items() if re.fullmatch(r"fast.*@1", name)
        )

    usual = fast()
    assert 0 < usual < fast("-p", "0.8") and usual <= fast("--raw") and usual < fast("--figure", "eager")
    assert fast("--margin", "0.3") < usual
    assert fast("-p", "100") == 0.0


def test_csv_is_one_line_a_run_without_formulas(root, tmp_path, capsys) -> None:
    lines = list(csv.DictReader(io.StringIO(written(capsys, root, "--format", "csv"))))
    assert len(lines) == 18 and {line["configuration"] for line in lines} == {"maker/good", f"'{EVIL}"}
    right = [line for line in lines if line["verdict"] == "passed"]
    assert right and all(
        float(line["device low"]) < float(line["device"]) < float(line["device high"]) for line in right
    )
    written(capsys, root, "--format", "csv", "--out", tmp_path / "tables")
    names = {path.stem for path in (tmp_path / "tables").iterdir()}
    assert {"summary", "models", "families", "mechanisms", "head_to_head", "problems", "runs", "left_out"} == names


def test_markdown_and_latex_hold_the_same_lines_as_text(root, capsys) -> None:
    markdown = written(capsys, root, "--format", "md", "--table", "summary").splitlines()
    table = [line for line in markdown if line.startswith("|")]
    assert len(table) == 4 and len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert r"\<script\>" in table[-2] + table[-1]
    latex = written(capsys, root, "--format", "latex", "--table", "summary")
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    assert r"\textless{}script\textgreater{}" in latex and r"\$x\$" in latex and r"\textbackslash{}" in latex
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(body) == 3 and len({len(re.findall(r"(?<!\\)&", line)) for line in body}) == 1


def test_two_versions_are_compared_by_path(tmp_path, capsys) -> None:
    for seed, name in enumerate(("before", "after")):
        write_set(tmp_path / name, models=("maker/good",), problems=(1, 2), samples=2, steps=3, seed=seed)
    paths = [tmp_path / "before", tmp_path / "after"]
    together = json.loads(written(capsys, *paths, "--format", "json"))["tables"]
    assert len(together["summary"]) == 1 and together["summary"][0]["samples"] == 8
    apart = json.loads(written(capsys, *paths, "--format", "json", "--by-path"))["tables"]
    assert [line["configuration"] for line in apart["summary"]] == [f"{path} · maker/good" for path in reversed(paths)]
    assert [line["what"] for line in apart["head_to_head"]] == ["correct@1", "fast1@1"]


def test_sweeps_and_runs_are_meant_by_name_or_path(tmp_path, capsys, monkeypatch) -> None:
    configs = [config(problem=problem, sample=sample) for problem in (1, 13) for sample in (1, 2)]
    sweep = sweep_record(tmp_path / "data", "first")
    write_set(sweep.runs, models=("maker/good",), problems=(1,), samples=2, steps=2, faults=0)
    sweep.lock_plan(Plan.make(configs, "first", "h", "0"))
    write_set(tmp_path / "data", models=("maker/single",), problems=(2,), samples=1, steps=2, faults=0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first").mkdir()  # a name comes before a folder of the same name

    def runs(*targets: str) -> list[str]:
        found = json.loads(written(capsys, *targets, "--runs-dir", "data", "--format", "json"))
        assert len(found["problems"]) == (1 if targets == ("0-p02-0",) else 2 if "data" not in targets else 3)
        return sorted(row["run_id"] for row in found["rows"])

    assert runs("first") == runs("data/sweeps/first") == runs("data/sweeps") == ["0-p01-0", "0-p01-1"]
    assert runs("0-p02-0") == ["0-p02-0"]
    assert runs("data") == runs("data", "first") == ["0-p01-0", "0-p01-1", "0-p02-0"]
    assert main(["report", "second", "--runs-dir", "data"]) == USAGE
    assert "no run 'second'" in capsys.readouterr().err
    assert main(["runs", "export", "first", "--runs-dir", "data"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("ratio", "text"), [((1.5, 1.4, 1.6), "1.50 [1.40, 1.60]"), ((1.5, 1.5, 1.5), "1.50")], ids=["ours", "pkb"]
)
def test_a_ratio_without_an_interval_shows_none(ratio, text) -> None:
    value, low, high = ratio
    assert shown(Ratio(value=value, low=low, high=high), Column("eager", ".2f")) == text


def test_wrong_calls_say_what_is_wrong(root, tmp_path, capsys) -> None:
    assert main(["report", str(tmp_path)]) == USAGE
    assert "neither a run" in capsys.readouterr().err
    (empty := tmp_path / "other" / "sweeps" / "s").mkdir(parents=True)
    (empty / "plan.json").write_text('{"x')
    assert main(["report", str(empty)]) == USAGE
    assert "plan.json: Invalid JSON" in capsys.readouterr().err
    assert main(["report", str(root), "--table", "x", "--format", "md"]) == USAGE
    assert "there are summary" in capsys.readouterr().err
    assert main(["report", str(root), "-p", "nan"]) == USAGE


def test_the_packaged_runs_make_a_report(tmp_path, capsys) -> None:
    from runs.record import DEFAULT_ROOT

    summary = json.loads(written(capsys, DEFAULT_ROOT.parent / "examples", "--format", "json"))["tables"]["summary"]
    assert [line["pass@1"]["value"] for line in summary] == [1.0, 1.0]
