"""A calibration of real GPUs: plausible beside the datasheet, kept, and in every measurement after it."""

import os

import pytest

from harness import calibration, roofline
from harness.evaluate import Sandbox, reference_candidate
from harness.types import Request
from problems import catalogue

pytestmark = pytest.mark.gpu
WORLD_SIZE = int(os.environ.get("RINGSMITH_WORLD_SIZE", "4"))


def test_gpus_are_calibrated_and_measurements_carry_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSMITH_CACHE", str(tmp_path))
    entry = catalogue.find("allreduce")
    request = Request(
        candidate=reference_candidate(entry), problem=entry.number, platform="cuda", world_size=WORLD_SIZE,
        dtype="bfloat16", trials=1,
    )  # fmt: skip
    with Sandbox("cuda", WORLD_SIZE) as sandbox:
        measured = sandbox.calibrate()
        calibration.save(measured)
        measurement = sandbox.evaluate(request).measurement
    print(measured.model_dump_json(indent=1))
    published = roofline.datasheet(measured.devices[0])
    assert published is not None
    peaks = measured.peaks(WORLD_SIZE)
    assert 0.5 < peaks.link_gbps / published.link_gbps <= 1
    assert 0.5 < peaks.hbm_gbps / published.hbm_gbps <= 1
    for dtype, tflops in peaks.tflops.items():
        assert 0.4 < tflops / published.tflops[dtype] <= 1, dtype
    assert measured.kernel_us is not None and 0.5 < measured.kernel_us < measured.barrier_us < 30
    assert measurement.sol_from == "datasheet" and measurement.achievable_us is not None
    assert measurement.sol_us < measurement.achievable_us < measurement.device.candidate.min_us
