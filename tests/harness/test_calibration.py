"""A machine's measured peaks: what is kept of them, and a real calibration on the cpu platform."""

import pytest

from harness import calibration
from harness.calibration import Calibration
from harness.errors import HarnessError, UsageError
from harness.evaluate import Sandbox, reference_candidate
from harness.types import Request
from problems import catalogue

DEVICES = ("NVIDIA H200",) * 4
MEASURED = Calibration(
    platform="cuda",
    devices=DEVICES,
    world_size=4,
    driver="580",
    torch="2.11",
    at=0.0,
    link_gbps={"pull": 390.0, "push": 370.0},
    hbm_gbps={"copy": 4300.0},
    tflops={"bfloat16": 790.0},
    barrier_us=5.0,
    kernel_us=1.2,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path / "cache"))


def test_it_is_kept_by_machine():
    assert calibration.load("cuda", DEVICES) is None
    path = calibration.save(MEASURED)
    assert calibration.load("cuda", DEVICES) == MEASURED
    assert calibration.load("cuda", DEVICES[:2]) is None and calibration.load("cpu", DEVICES) is None
    newer = MEASURED.model_copy(update={"driver": "590"})
    assert calibration.save(newer) == path and calibration.load("cuda", DEVICES) == newer
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        MEASURED.model_dump_json().replace("790.0", "-1"),
        MEASURED.model_dump_json().replace("790.0", '"Infinity"'),
        MEASURED.model_dump_json().replace("H200", "H100"),  # a file copied by hand from another machine
    ],
)
def test_what_cannot_be_used_is_none(text):
    path = calibration.save(MEASURED)
    path.write_text(text)
    assert calibration.load("cuda", DEVICES) is None


def test_a_folder_that_cannot_be_written_is_one_line():
    path = calibration.path("cuda", DEVICES)
    path.parent.parent.mkdir()
    path.parent.touch()
    with pytest.raises(HarnessError, match="cannot write"):
        calibration.save(MEASURED)


def test_peaks_are_the_best_of_all_ways_and_latency_needs_as_many_ranks():
    peaks = MEASURED.peaks(4)
    assert (peaks.link_gbps, peaks.hbm_gbps, peaks.kernel_us, peaks.signal_us) == (390.0, 4300.0, 1.2, 2.5)
    assert MEASURED.peaks(2).signal_us == 0.0


def test_one_rank_has_nothing_to_calibrate():
    with Sandbox("cpu", 1) as sandbox, pytest.raises(UsageError, match="at least two ranks"):
        sandbox.calibrate()


def test_a_cpu_is_calibrated_and_its_measurements_keep_the_floor():
    entry = catalogue.find("allreduce")
    request = Request(
        candidate=reference_candidate(entry), problem=entry.number, case="tiny", platform="cpu", world_size=2,
        dtype="float32", trials=1,
    )  # fmt: skip
    with Sandbox("cpu", 2) as sandbox:
        measured = sandbox.calibrate()
        calibration.save(measured)
        measurement = sandbox.evaluate(request).measurement
    assert len(measured.link_gbps) == 4 and len(measured.hbm_gbps) == 2
    assert set(measured.tflops) == {"bfloat16", "float16", "float32", "float64"}
    assert max(measured.hbm_gbps.values()) > 1 and measured.tflops["float32"] > 1e-3
    assert measured.barrier_us < 1e5 and measured.kernel_us is None
    assert measurement.sol_from == "calibration" and measurement.bound_by in ("link in", "link out", "HBM")
    assert 0 < measurement.sol_us < measurement.achievable_us
    assert measurement.sol_us < min(measurement.eager.candidate.min_us, measurement.eager.reference.min_us)
