"""Problems from elsewhere: a checkout in PKB's layout, a file, a folder; on real ranks too."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.evaluate import Sandbox, reference_candidate
from harness.types import Backend, Candidate, Limits, Request, Verdict
from problems.catalogue import entries, find, load, statement
from problems.spec import ProblemError

ROOT = Path(__file__).parents[2]

GENERATOR = """
import torch
import torch.distributed as dist


def _pairs():
    world = dist.get_world_size()
    groups = [dist.new_group(list(range(i, min(i + 2, world)))) for i in range(0, world, 2)]
    return groups[dist.get_rank() // 2]


def create_input_tensor(rank, world_size, problem_id, base_shape, dtype, trial=0, device=None):
    torch.manual_seed(42 + 1000 * problem_id + rank + 1_000_003 * trial)
    x = torch.randn(base_shape, dtype=dtype, device=device)
    if problem_id == 1:
        return (x,)
    return [x], torch.nn.Linear(base_shape[1], 8, dtype=dtype, device=device), _pairs()
"""

ALL_REDUCE = """
import torch
import torch.distributed as dist


@torch.no_grad()
def solution(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total
"""

LAYER = '''
import torch
import torch.distributed as dist


def solution(tensors, layer, group=None):
    """Sums over a group."""
    total = layer(tensors[0])
    dist.all_reduce(total, group=group)
    return total
'''

OWN = '''"""Scaled sum.

More about it.
"""
import torch
import torch.distributed as dist

FACTOR = 3.0


def reference(x):
    total = x * FACTOR
    dist.all_reduce(total)
    return total


def inputs(ctx):
    return ctx.randn(16, 8)
'''


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pkb")
    (folder / "utils").mkdir()
    (folder / "reference").mkdir()
    (folder / "utils/input_output_tensors.py").write_text(GENERATOR)
    (folder / "reference/1_allreduce.py").write_text(ALL_REDUCE)
    (folder / "reference/99_layer_sum.py").write_text(LAYER)
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def evaluate(box: Sandbox, number: int, suite: Path, source: str | None = None, case: str = ""):
    entry = find(number, str(suite))
    given = reference_candidate(entry) if source is None else Candidate(source=source, backend=Backend.reference)
    return box.evaluate(
        Request(
            candidate=given, problem=number, suite=entry.suite, case=case, platform="cpu", world_size=2,
            dtype="float32", timing=False, limits=Limits(first_call_s=10.0),
        )
    )  # fmt: skip


def test_a_checkout_is_listed_and_shown_as_it_is(checkout):
    first, second = entries(str(checkout))
    assert (first.number, first.name, first.title) == (1, "allreduce", find(1).title)
    assert (second.number, second.name, second.tolerance, second.default) == (99, "layer_sum", "flat", "pkb")
    assert second.arguments == ["tensors", "layer", "group"]
    assert statement(second) == LAYER


def test_a_checkout_runs_with_its_own_inputs_and_stays_as_it_was(checkout):
    before = sorted(checkout.rglob("*"))
    with Sandbox("cpu", 2) as box:
        for number in (1, 99):
            result = evaluate(box, number, checkout, case="small")
            assert result.passed and result.check == "pkb" and result.suite == str(checkout), result.summary
        # One part in a hundred is within PKB's tolerance, a tenth is not.
        assert evaluate(box, 1, checkout, ALL_REDUCE.replace("return total", "return total * 1.005"), "small").passed
        wrong = evaluate(box, 1, checkout, ALL_REDUCE.replace("return total", "return total * 1.1"), "small")
        assert wrong.verdict is Verdict.wrong_values
    assert sorted(checkout.rglob("*")) == before


def test_a_file_of_ones_own(own):
    (entry,) = entries(str(own))
    assert (entry.number, entry.name, entry.title, entry.family) == (1, "mine", "Scaled sum.", "user")
    assert "FACTOR = 3.0" in statement(entry) and "def inputs" not in statement(entry)
    with Sandbox("cpu", 2) as box:
        assert evaluate(box, 1, own).passed
        wrong = evaluate(box, 1, own, statement(entry).replace("3.0", "2.0") + "\nsolution = reference\n")
        assert wrong.verdict is Verdict.wrong_values


def test_a_folder_numbers_what_has_no_number(own):
    (own.parent / "p01_other.py").write_text(OWN.replace("Scaled sum", "Another"))
    (own.parent / "_helper.py").write_text("")
    assert [(entry.number, entry.name) for entry in entries(str(own.parent))] == [(1, "other"), (2, "mine")]
    assert load(2, str(own.parent)).inputs is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reference(x):\n    return x\n", "needs a function `reference`"),
        ("def inputs(:\n", "invalid syntax"),
        (OWN + "\nTOLERANCE = 'loose'\n", "TOLERANCE 'loose' is not one of exact, rounding, flat"),
    ],
)
def test_a_file_that_is_no_problem_is_named(tmp_path, text, message):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ProblemError, match=message):
        entries(str(path))


def test_a_path_that_is_none_and_an_import_that_fails(tmp_path, own):
    with pytest.raises(ProblemError, match="no suite at"):
        entries(str(tmp_path / "nowhere"))
    own.write_text(OWN.replace("import torch\n", "import torch\nimport no_such_module\n", 1))
    with pytest.raises(ProblemError, match="No module named 'no_such_module'"):
        load(1, str(own))
    with Sandbox("cpu", 2) as box, pytest.raises(ProblemError, match="no_such_module"):
        evaluate(box, 1, own)


def test_new_writes_a_problem_that_runs(tmp_path):
    def ringsmith(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "service.cli", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    path = tmp_path / "mine.py"
    assert ringsmith("problems", "new", str(path)).returncode == 0
    assert ringsmith("problems", "new", str(path)).returncode == 2, "never overwrites"
    common = ("--suite", str(path), "--platform", "cpu")
    done = ringsmith("eval", "reference", "--problem", "1", *common, "--case", "tiny", "--no-timing", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["suite"] == str(path)
    shown = ringsmith("problems", "show", "mine", *common)
    assert "default*" in shown.stdout and "def reference(tensor" in shown.stdout


def test_list_shows_all_with_their_fields_and_filters():
    def listed(*words: str) -> list[dict]:
        command = [sys.executable, "-m", "service.cli", "problems", "list", "--json", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    everything = listed()
    assert [facts["number"] for facts in everything] == list(range(1, 88))
    for facts in everything:
        assert all(
            facts[name] for name in ("name", "title", "family", "source", "tags", "tolerance", "cases", "arguments")
        )
        assert facts["link_mb"] > 0 and facts["default"] in facts["cases"]
    assert {facts["family"] for facts in listed("--family", "graph")} == {"graph"}
    assert all("VeOmni" in facts["source"] for facts in listed("--source", "veomni"))
    small = listed("--max-mb", "0.01")
    assert 0 < len(small) < 87 and all(facts["link_mb"] <= 0.01 for facts in small)


def test_what_needs_something_that_is_not_installed_is_listed_all_the_same(checkout, tmp_path):
    folder = tmp_path / "pkb"
    shutil.copytree(checkout, folder)
    (folder / "reference/98_missing.py").write_text("import not_installed_here\n" + ALL_REDUCE)
    command = [sys.executable, "-m", "service.cli", "problems", "list", "--json", "--suite", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    listed = {facts["number"]: facts for facts in map(json.loads, done.stdout.splitlines())}
    assert sorted(listed) == [1, 98, 99] and listed[98]["link_mb"] is None
