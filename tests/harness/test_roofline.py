"""The floor is what the busiest rank cannot avoid, in microseconds."""

from dataclasses import replace

import pytest

from harness.roofline import Floors, Peaks, floor, floors, time_at
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
    assert times["bfloat16"] == times["float16"] < times["float32"] < times["float64"]
    # Three 16-bit products of split operands are as good as one of float32, and faster than the float32 units.
    assert times["float32"] == pytest.approx(3 * times["bfloat16"])
    # float64 units keep up with what slices would take on an H200, and not on a B200.
    assert times["float64"] == pytest.approx(14 * times["bfloat16"]) == pytest.approx(1e12 / 67e12 * 1e6, rel=0.06)


def test_a_wider_product_does_for_a_narrow_dtype():
    slow_half = Peaks(1e9, 1e9, {"bfloat16": 0.2, "float16": 0.003, "float32": 0.1})
    times = {dtype: time_at(Work(flops=1e9), slow_half, dtype)[0] for dtype in ("bfloat16", "float16", "float32")}
    assert times == pytest.approx({"bfloat16": 5e3, "float16": 1e4, "float32": 1e4})


MEASURED = Peaks(4000, 400, {"bfloat16": 800}, kernel_us=1.5, signal_us=2.5)


@pytest.mark.parametrize(
    ("work", "us", "binds"),
    [
        (Work(link_in_bytes=4e6, link_out_bytes=2e6), 10, "link in"),
        (Work(link_in_bytes=4e3, link_out_bytes=4e3), 2.5, "latency"),  # a signal from another rank
        (Work(hbm_bytes=4e3), 1.5, "latency"),  # a kernel of its own
        (Work(flops=8e9, hbm_bytes=4e3), 10, "FLOPs"),
    ],
)
def test_measured_peaks_know_latency(work, us, binds):
    assert time_at(work, MEASURED, "bfloat16") == (pytest.approx(us), binds)


def test_the_datasheet_is_the_floor_and_measured_rates_what_can_be_reached():
    work = Work(link_in_bytes=450e3)
    found = floors(work, H200, "bfloat16", 4, MEASURED)
    assert (found.sol_us, found.bound_by, found.sol_from) == (pytest.approx(1.0), "link in", "datasheet")
    assert (found.achievable_us, found.achievable_bound_by) == (2.5, "latency")
    assert floors(work, H200, "bfloat16", 4, None) == replace(found, achievable_us=None, achievable_bound_by="")


@pytest.mark.parametrize(("world_size", "share"), [(1, 2), (2, 2), (4, 4)])
def test_without_a_datasheet_a_share_of_the_measured_time_is_the_floor(world_size, share):
    work = Work(link_in_bytes=4e3, hbm_bytes=4e6)
    found = floors(work, "AMD EPYC (2 cores)", "bfloat16", world_size, replace(MEASURED, signal_us=50.0))
    assert (found.achievable_us, found.achievable_bound_by) == (50.0, "latency")
    # Ranks that were ready before they are timed wait for nobody: latency is no floor.
    assert found.sol_us == pytest.approx(max(1.0, 4e3 / 400 / 1e3) / share)
    assert (found.bound_by, found.sol_from) == ("HBM", "calibration")
    assert floors(work, "AMD EPYC (2 cores)", "bfloat16", world_size, None) == Floors()


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
        case = entry.cases["large"]
        if problem.illegal(case, world_size) is None:
            found = floor(problem.work(case, world_size, 2), H200, "bfloat16")
            assert found is not None and found[0] > 0.1


def test_a_problem_that_says_nothing_of_its_work_has_no_floor():
    assert floor(Work(), H200, "bfloat16") is None and floors(Work(), H200, "bfloat16", 4, None) == Floors()
