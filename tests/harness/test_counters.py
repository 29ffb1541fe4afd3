"""The reader of hardware counters compiles here, and what it asks for takes one pass: CUPTI says so without a GPU."""

import ctypes
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import counters, profiler
from harness.platforms.cuda import cuda_home

PASSES = r"""
#include <cstring>
#include <vector>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#define PARAMS(type, name) type name; memset(&name, 0, sizeof name); name.structSize = type##_STRUCT_SIZE
#define TRY(call, params) if (int failed = call(&params)) return -failed
// How many passes the metrics need on a chip, or minus CUPTI's error.
extern "C" int passes(const char* chip, const char** names, int count) {
    PARAMS(CUpti_Profiler_Initialize_Params, init);
    cuptiProfilerInitialize(&init);  // fails without a driver, but what follows does not need one
    PARAMS(CUpti_Profiler_Host_Initialize_Params, open);
    open.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
    open.pChipName = chip;
    TRY(cuptiProfilerHostInitialize, open);
    PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
    add.pHostObject = open.pHostObject;
    add.ppMetricNames = names;
    add.numMetrics = count;
    TRY(cuptiProfilerHostConfigAddMetrics, add);
    PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = open.pHostObject;
    TRY(cuptiProfilerHostGetConfigImageSize, size);
    std::vector<unsigned char> bytes(size.configImageSize);
    PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image);
    image.pHostObject = open.pHostObject;
    image.configImageSize = bytes.size();
    image.pConfigImage = bytes.data();
    TRY(cuptiProfilerHostGetConfigImage, image);
    PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, number);
    number.configImageSize = bytes.size();
    number.pConfigImage = bytes.data();
    TRY(cuptiProfilerHostGetNumOfPasses, number);
    return (int)number.numOfPasses;
}
"""
HOMES = [Path(cuda_home()), *sorted(Path("/usr/local").glob("cuda*"), reverse=True)]
needs_headers = pytest.mark.skipif(
    not shutil.which("g++")
    or not any((h / f / counters._HEADER).is_file() for h in HOMES for f in ("include", "extras/CUPTI/include")),
    reason="needs g++ and CUPTI's headers",
)


@needs_headers
def test_the_reader_compiles():
    path = counters.library()
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert {"rs_counters_begin", "rs_counters_push", "rs_counters_end", "rs_counters_error"} <= set(symbols.split())
    start = time.monotonic()
    assert counters.library() == path and time.monotonic() - start < 5  # from the cache


def test_without_a_compiler_or_cupti_it_is_said_why(monkeypatch, tmp_path):
    with monkeypatch.context() as patch, pytest.raises(counters.CountersError, match="compiler"):
        patch.setattr(counters.shutil, "which", lambda name: None)
        counters.library()
    with monkeypatch.context() as patch, pytest.raises(counters.CountersError, match="has no cupti_range"):
        patch.setattr(counters, "_HEADER", "cupti_range_profiler_of_the_future.h")
        patch.setattr(counters.shutil, "which", lambda name: "/usr/bin/g++")
        counters.library()
    with pytest.raises(counters.CountersError):
        counters.Counters(tmp_path / "none.so", 0)


@pytest.fixture(scope="module")
def passes(tmp_path_factory):
    """`passes(chip, names)`."""
    folder = tmp_path_factory.mktemp("passes")
    (folder / "passes.cpp").write_text(PASSES)
    places = [home / below for home in HOMES for below in ("lib64", "lib", "extras/CUPTI/lib64")]
    found = next((place / "libcupti.so" for place in places if (place / "libcupti.so").exists()), None)
    if found is None:
        pytest.skip("the toolkit here has no libcupti")
    includes = [f"-I{home / below}" for home in HOMES for below in ("include", "extras/CUPTI/include")]
    command = ["g++", "-shared", "-fPIC", "-w", *includes, "passes.cpp", "-o", "passes.so", str(found)]
    subprocess.run(
        [*command, f"-Wl,-rpath,{found.parent}"], cwd=folder, check=True, timeout=60, capture_output=True, text=True
    )
    library = ctypes.CDLL(str(folder / "passes.so"))

    def ask(chip: str, names: tuple[str, ...]) -> int:
        array = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        return library.passes(chip.encode(), array, len(names))

    return ask


@needs_headers
@pytest.mark.parametrize("chip", ["GH100", "GA100", "GB100"])
def test_each_set_of_counters_takes_one_pass(passes, chip):
    sets = [*counters.CALL_SETS, *counters.KERNEL_SETS]
    assert [passes(chip, names) for names in sets] == [1] * len(sets)
    assert passes(chip, ("no__such_metric.sum",)) < 0
    assert passes(chip, tuple(name for names in sets for name in names)) != 1  # which is why there are sets


# -- what becomes of them ----------------------------------------------------------------------------------------------


def rows(**changes):
    values = dict.fromkeys((*counters.LINK, *counters.MEMORY), 0.0) | dict.fromkeys(counters.SM, 50.0)
    values |= {counters.LINK[0]: 120.0, counters.LINK[2]: 100.0, counters.LINK[4]: 30.0, counters.LINK[5]: 90.0}
    values |= changes
    return [[{name: values[name] for name in names}] for names in counters.CALL_SETS]


def test_figures_are_per_call():
    found = profiler._hardware(rows(), None)
    calls = profiler._COUNTED_CALLS
    assert (found["link"].sent_bytes, found["link"].wire_bytes) == (100 / calls, 120 / calls)
    assert found["link"].pushed == 0.25 and found["tensor_active"] == found["warps_active"] == 0.5


def test_without_counters_there_is_nvml():
    assert profiler._hardware([], None) == {}
    assert profiler._hardware([], SimpleNamespace(sent=1, received=2, wire=3))["link"].pushed is None


def test_a_share_of_no_cycles_is_none_of_them():
    assert profiler._counted(float("nan")) == 0.0 and profiler._counted(3) == 3.0
    for value in (float("inf"), 10**4000, "many", None):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            profiler._counted(value)
