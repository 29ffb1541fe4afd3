import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.prompt import PROMPTS, render
from harness.errors import UsageError
from harness.types import Backend, Topology
from problems import catalogue
from problems.spec import Work
from runs.events import Budget, Target

ENTRY = catalogue.find(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The real templates with a backend page of the test's own."""
    for name in ("system.md.j2", "task.md.j2"):
        shutil.copy(PROMPTS / name, tmp_path)
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "cuda.md").write_text("# Backend: cuda\n\nUse {{ braces }} & <angles> freely.\n")
    return tmp_path


def facts(**changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "entry": ENTRY,
        "statement": "def reference(x):\n    return x < 1 and {{ x }}\n",
        "case": next(iter(ENTRY.cases.values())),
        "world_size": 4,
        "dtype": "bfloat16",
        "topology": Topology(platform="cuda", devices=("H200",) * 4, summary="4 x H200, NVLink 390 GB/s"),
        "budget": Budget(steps=12, device_s=300.0),
        "target": Target(speedup=1.5),
        "backend": Backend.cuda,
        "check": "oracle",
        "tools": ("write_candidate", "compile", "run_benchmark", "submit"),
        "work": Work(hbm_bytes=2e9, link_out_bytes=1e6, link_in_bytes=3e6),
        "sol_us": 12.34,
    }
    return {**given, **changed}


def test_both_messages_say_what_they_must(folder: Path) -> None:
    (system, task), _ = render(**facts(), folder=folder)
    assert (system.role, task.role) == ("system", "user")
    assert "write_candidate, compile, run_benchmark, submit" in system.text
    assert "NVLink multicast is forbidden" in system.text
    assert "`profile`" not in system.text  # a tool that is not there is not advised
    for said in (
        f"{ENTRY.title} (problem 1",
        "return x < 1 and {{ x }}",
        "World size: 4",
        "dtype: bfloat16",
        "4 x H200, NVLink 390 GB/s",
        "2,000,000,000 bytes read or written",
        "1,000,000 bytes sent to and 3,000,000 received",
        "12.3 us",
        "speed-up above 1.5",
        "At most 12 replies",
        "At most 300.0 device-seconds",
        "Use {{ braces }} & <angles> freely.",
        str(facts()["case"]),
    ):
        assert said in task.text
    assert "USD" not in task.text
    assert "\n\n\n" not in system.text + task.text


def test_only_where_arguments_are_updated_it_is_said_what_reports_call_them(folder: Path) -> None:
    said = "`out[0]` is what `solution` returned and `out[1][k]` what the k-th of these holds"
    (_, task), _ = render(**facts(entry=catalogue.find(30)), folder=folder)
    assert "must also update `grad_fc1_1_lora_A`, `grad_fc1_2_lora_A`, `grad_fc2_lora_B` in place" in task.text
    assert said in task.text
    (_, task), _ = render(**facts(), folder=folder)
    assert "must also update" not in task.text and "out[" not in task.text


def test_unknown_facts_are_left_out(folder: Path) -> None:
    (folder / "backends" / "cpp.md").write_text("page")
    cpu = Topology(platform="cpu", devices=("cpu",), summary="16 cores")
    given = facts(topology=cpu, backend=Backend.cpp, work=None, sol_us=None, target=Target(), budget=Budget(steps=None))
    (system, task), _ = render(**given, folder=folder)
    assert "multicast" not in system.text
    assert "Floor" not in task.text
    assert "At most" not in task.text
    assert "as fast as you can" in task.text


def test_the_hash_covers_every_file_that_is_used(folder: Path) -> None:
    hashes = [render(**facts(), folder=folder)[1]]
    for name in ("system.md.j2", "task.md.j2", "backends/cuda.md"):
        with (folder / name).open("a") as file:
            file.write("more\n")
        hashes.append(render(**facts(), folder=folder)[1])
    assert len(set(hashes)) == 4
    (folder / "backends" / "triton.md").write_text("not used")
    assert render(**facts(world_size=2), folder=folder)[1] == hashes[-1]


def test_what_can_be_read_is_named_and_hashed(folder: Path) -> None:
    given = facts(tools=("read", "submit"))
    (system, _), before = render(**given, folder=folder)
    assert "`read` shows" not in system.text
    for name, text in (("knowledge/flags.md", "Backends: cuda\n# Flags\n"), ("knowledge/sheds.md", "Backends: cpp\n#")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (system, _), after = render(**given, folder=folder)
    assert "written and fail (flags)." in system.text and after != before
    (folder / "examples" / "cuda").mkdir(parents=True)
    for name in ("p01_answer", "p02_other"):
        (folder / "examples" / "cuda" / f"{name}.py").write_text('"""An example."""')
    (system, _), last = render(**given, folder=folder)
    assert "(flags) and worked examples (p02_other)." in system.text and last not in (before, after)
    (folder / "examples" / "cuda" / "p01_answer.py").write_text("changed, and not shown")
    assert render(**given, folder=folder)[1] == last
    assert "`read` shows" not in render(**facts(), folder=folder)[0][0].text


def test_a_template_with_a_name_that_nobody_gives_fails(folder: Path) -> None:
    (folder / "task.md.j2").write_text("{{ wrold_size }}")
    with pytest.raises(UsageError, match="'wrold_size' is undefined"):
        render(**facts(), folder=folder)


def test_a_missing_page_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no prompt file .*backends/triton.md"):
        render(**facts(backend=Backend.triton), folder=folder)
