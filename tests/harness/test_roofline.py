"""The floor is what the busiest rank cannot avoid, in microseconds."""

import pytest

from harness.roofline import floor
from problems import catalogue
from problems.spec import Work

H200 = "NVIDIA H200"


@pytest.mark.parametrize(
    ("work", "us", "binds"),
    [
        (Work(flops=989e12), 1e6, "FLOPs"),
        (Work(hbm_bytes=4800e9), 1e6, "HBM"),
        (Work(link_in_bytes=450e9), 1e6, "link in"),
        (Work(link_out_bytes=450e6), 1e3, "link out"),
        (Work(flops=989e12, hbm_bytes=4800e9 / 2, link_in_bytes=450e9 * 2, link_out_bytes=450e9), 2e6, "link in"),
    ],
)
def test_the_slowest_resource_binds(work, us, binds):
    found = floor(work, H200, "bfloat16")
    assert found is not None
    assert found[0] == pytest.approx(us) and found[1] == binds


def test_flops_depend_on_the_dtype():
    work = Work(flops=1e12)
    times = {dtype: floor(work, H200, dtype)[0] for dtype in ("bfloat16", "float16", "float32", "float64")}
    assert times["bfloat16"] == times["float16"] < times["float32"]
    assert times["float32"] == pytest.approx(1e12 / 67e12 * 1e6)


@pytest.mark.parametrize(
    ("device", "hbm_gbps"),
    [("NVIDIA H100 80GB HBM3", 3350), (H200, 4800), ("NVIDIA A100-SXM4-80GB", 2039), ("NVIDIA B200", 8000)],
)
def test_devices_are_known_by_their_names(device, hbm_gbps):
    assert floor(Work(hbm_bytes=1e9), device, "bfloat16")[0] == pytest.approx(1e9 / hbm_gbps / 1e3)


def test_an_unknown_device_has_no_floor():
    for device in ("", "AMD EPYC 9454 (48 cores)", "NVIDIA L40S", "NVIDIA H20"):
        assert floor(Work(hbm_bytes=1e9), device, "bfloat16") is None


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda e: e.name)
def test_every_problem_has_a_positive_floor(entry):
    problem = catalogue.load(entry.number)
    for world_size in (2, 4, 8):
        case = entry.cases["pkb"]
        if problem.illegal(case, world_size) is None:
            found = floor(problem.work(case, world_size, 2), H200, "bfloat16")
            assert found is not None and found[0] > 0.1
