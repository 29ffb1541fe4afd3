"""`ringsmith doctor --calibrate`: what it prints and stores, and what a plain `doctor` says afterwards. No ranks."""

import json
import sys
from types import ModuleType

import pytest

from harness import calibration, machine
from harness.calibration import Calibration
from harness.errors import HarnessError
from harness.platforms.cpu import Cpu
from service import cli
from service.calibration import differences, report
from service.doctor import Mark, diagnose
from tests.service.test_doctor import NODE

H200 = Calibration(
    platform="cuda",
    devices=("NVIDIA H200",) * 4,
    world_size=4,
    driver="580.65",
    torch="2.11.0+cu130",
    at=1.8e9,
    link_gbps={"pull, all ranks at once": 387.0},
    hbm_gbps={"copy, all ranks at once": 4300.0},
    tflops={"bfloat16": 791.2, "float32": 50.0},
    barrier_us=4.5,
    kernel_us=1.25,
)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A calibration of this machine's processor, and a sandbox that measures just that or raises."""
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "scan_gpus", lambda: machine.GpuScan(reason="none here"))
    update = {"platform": "cpu", "devices": Cpu().device_names(), "driver": "", "torch": machine.torch_version() or ""}
    measured = H200.model_copy(update=update | {"world_size": 2, "kernel_us": None})
    answers: list[Calibration | Exception] = [measured]

    class Sandbox:
        def __init__(self, platform, world_size):
            assert (platform, world_size) == ("cpu", 2)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def calibrate(self):
            answer = answers.pop()
            if isinstance(answer, Exception):
                raise answer
            return answer

    fake = ModuleType("harness.evaluate")
    fake.Sandbox = Sandbox
    monkeypatch.setitem(sys.modules, "harness.evaluate", fake)
    return measured, answers


def test_it_is_measured_shown_and_stored(here, capsys):
    measured, answers = here
    assert cli.main(["doctor", "--calibrate", "--platform", "cpu"]) == 0
    said = capsys.readouterr().out
    path = calibration.path("cpu", measured.devices)
    assert f"stored in {path}" in said and "387 GB/s" in said
    assert calibration.load("cpu", measured.devices) == measured
    answers.append(measured)
    assert cli.main(["doctor", "--calibrate", "--platform", "cpu", "--world-size", "2", "--json"]) == 0
    assert Calibration.model_validate(json.loads(capsys.readouterr().out)) == measured


def test_a_plain_doctor_knows_of_it(here, capsys):
    measured, _ = here
    cli.main(["doctor"])
    before = capsys.readouterr().out
    assert "peaks of cpu" in before and "not measured on this machine" in before and "peaks of cuda" not in before
    calibration.save(measured)
    cli.main(["doctor"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "peaks of cpu" in line]
    assert line.startswith("ok") and line.endswith("with 2 ranks")


def test_errors_have_the_exit_codes_of_other_commands(here, capsys):
    _, answers = here
    answers.append(HarnessError("the ranks died"))
    assert cli.main(["doctor", "--calibrate", "--platform", "cpu"]) == 3
    assert cli.main(["doctor", "--calibrate", "--platform", "cuda"]) == 2
    assert cli.main(["doctor", "--world-size", "2"]) == 2
    assert "go with --calibrate" in capsys.readouterr().err


def test_a_report_compares_with_the_datasheet(tmp_path):
    rows = [" ".join(line.split()) for line in report(H200, tmp_path).splitlines()]
    assert rows[0] == "4x NVIDIA H200, 4 ranks, the best of each:"
    assert "link, one direction: pull, all ranks at once 387 GB/s 450 GB/s 86%" in rows
    assert "memory, read + write: copy, all ranks at once 4300 GB/s 4800 GB/s 90%" in rows
    assert "matrix product, bfloat16 791 TFLOP/s 989 TFLOP/s 80%" in rows
    assert "barrier of 4 ranks 4.50 us" in rows and "smallest kernel 1.25 us" in rows


def test_what_has_changed_since_is_a_warning():
    assert not list(differences(H200, NODE))
    old = H200.model_copy(update={"driver": "570.10", "torch": "2.10.0"})
    found = {finding.what: finding for finding in diagnose(NODE, {"cuda": old, "cpu": None}).findings}
    assert found["peaks of cuda"].mark is Mark.warning
    assert "driver was 570.10, is 580.65; torch was 2.10.0, is 2.11.0+cu130" in found["peaks of cuda"].detail
    assert "--calibrate --platform cuda" in found["peaks of cuda"].remedy
    assert found["peaks of cpu"].mark is Mark.ok
