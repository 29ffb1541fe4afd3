"""Each rule of the hints: a profile in which it is right, and the ones in which it says nothing."""

import pytest

from harness.hints import MOST, hints, short_name
from harness.profile_types import CallProfile, KernelCode, KernelProfile, LinkTraffic, Profile, RankProfile

LIMITS = {"FLOPs": 1.0, "HBM": 20.0, "link in": 40.0, "link out": 40.0}
BYTES = 16e6


def kernel(name="ns::move(float*)", us=90.0, communicates=True, computes=False, grid=(32, 1, 1), **more):
    return KernelProfile(
        name=name, calls=more.pop("calls", 1), device_us=us, fastest_us=more.pop("fastest_us", us), grid=grid,
        block=(512, 1, 1), registers=32, communicates=communicates, computes=computes, **more,
    )  # fmt: skip


def rank(number=0, **changes):
    link = LinkTraffic(sent_bytes=BYTES, received_bytes=BYTES, wire_bytes=1.2 * BYTES, pushed=1.0)
    facts = {
        "iteration_us": 105.0, "top": (), "span_us": 100.0, "communication_us": 90.0, "computation_us": 8.0,
        "both_us": 0.0, "link": link, "hbm_read_bytes": 5e6, "hbm_written_bytes": 5e6, "tensor_active": 0.0,
        "warps_active": 0.5,
    }  # fmt: skip
    return RankProfile(rank=number, **(facts | changes))


def profile(kernels=(), ranks=None, **changes):
    facts = {
        "mechanisms": ("SM loads and stores",), "limits_us": LIMITS, "ideal_link_bytes": (BYTES, BYTES),
        "ideal_hbm_bytes": 10e6,
    }  # fmt: skip
    ranks = ranks or (rank(0), rank(1))
    kernels = tuple(kernels) or (kernel(),)
    return Profile(
        candidate="c", dtype="bfloat16", iterations=5, trace="t.json", ranks=ranks, kernels=kernels, **(facts | changes)
    )


def both(**changes):
    return (rank(0, **changes), rank(1, **changes))


def link(size):
    return LinkTraffic(sent_bytes=size, received_bytes=size, wire_bytes=size * 1.2)


def code(**facts):
    return kernel(code=KernelCode(name="k", **facts))


CPU = {"span_us": 0.0, "communication_us": 0.0, "computation_us": 0.0, "link": None, "hbm_read_bytes": None,
       "hbm_written_bytes": None, "tensor_active": None}  # fmt: skip
PRODUCTS = {"FLOPs": 50.0, "HBM": 20.0, "link in": 40.0, "link out": 40.0}
GEMM = kernel("gemm(float*)", 60, communicates=False, computes=True)
GLOO = CallProfile(name="gloo:all_reduce", device_us=0, host_us=80, calls=1)

RULES = {
    "waits for the host": (profile(ranks=both(iteration_us=400.0)), profile(ranks=both(iteration_us=130.0))),
    "idles between kernels": (profile(ranks=both(idle_us=30.0)), profile(ranks=both(idle_us=10.0))),
    "times the bytes": (profile(ranks=both(link=link(3 * BYTES))), profile(ranks=both(link=link(1.1 * BYTES)))),
    "one after the other": (
        profile([kernel(us=40), GEMM], both(communication_us=40.0, computation_us=60.0)),
        profile([kernel(us=40), GEMM], both(communication_us=70.0, computation_us=60.0, both_us=40.0)),
    ),
    "comes last": (
        profile(ranks=(rank(0, waiting_us=40.0), rank(1, waiting_us=1.0))),
        profile(ranks=(rank(0, waiting_us=4.0), rank(1, waiting_us=1.0))),
    ),
    "too few blocks": (profile([kernel(grid=(4, 1, 1))]), profile([kernel(grid=(4, 8, 1))])),
    "a few bytes": (
        profile([code(loads={4: 2}, stores={4: 1})]), profile([code(loads={16: 1, 2: 8}, stores={16: 1, 2: 8})]),
    ),
    "each pass of a loop": (
        profile([code(system_fences=2, system_fences_in_loops=1)]), profile([code(system_fences=2)]),
    ),
    "local memory:": (profile([code(spills=40)]), profile([code(spills=2)])),
    "copies between ranks are small": (
        profile([kernel("Memcpy PtoP (Device -> Device)", 90, grid=(), copied_bytes=1 << 16, calls=30)]),
        profile([kernel("Memcpy PtoP (Device -> Device)", 90, grid=(), copied_bytes=8 << 20, calls=2)]),
    ),
    "the tensor cores idle": (
        profile(ranks=both(span_us=1000.0, computation_us=900.0), limits_us=PRODUCTS),
        profile(ranks=both(span_us=1000.0, computation_us=900.0, tensor_active=0.3), limits_us=PRODUCTS),
    ),
    "read and written": (profile(ranks=both(hbm_read_bytes=25e6)), profile(ranks=both(hbm_read_bytes=6e6))),
    "NCCL moves the data": (
        profile([kernel("ncclDevKernel_AllReduce(ncclArgs)")], mechanisms=("NCCL",)), profile(),
    ),
    "little is left": (profile(ranks=both(span_us=45.0)), profile(ranks=both(span_us=90.0))),
    "gloo moves the data": (
        profile(ranks=both(**CPU, cpu_share=1.0, top=(GLOO,)), mechanisms=("gloo",)),
        profile(ranks=both(**CPU, cpu_share=1.0, top=(GLOO,)), mechanisms=("shared memory", "gloo")),
    ),
    "ranks sleep": (profile(ranks=both(**CPU, cpu_share=0.2)), profile(ranks=both(**CPU, cpu_share=0.95))),
    "far more shared memory": (
        profile(ranks=both(**CPU, shared_bytes=(8 * BYTES, 8 * BYTES))),
        profile(ranks=both(**CPU, shared_bytes=(BYTES, BYTES))),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "profiles"), RULES.items(), ids=list(RULES))
def test_a_hint_is_given_where_it_is_right_and_only_there(words, profiles):
    right, wrong = ([hint for hint in hints(p) if words in hint.text] for p in profiles)
    assert len(right) == 1 and not wrong
    assert right[0].evidence and any(letter.isdigit() for letter in right[0].evidence)


def test_there_are_at_most_three_best_first():
    many = [code(loads={4: 2}, stores={4: 1}, spills=40, system_fences=1, system_fences_in_loops=1)]
    found = hints(profile(many, both(link=link(3 * BYTES), iteration_us=400.0, idle_us=30.0)))
    gains = [hint.gain_us for hint in found]
    assert len(found) == MOST and gains == sorted(gains, reverse=True) and "times the bytes" in found[0].text


def test_what_saves_little_is_no_hint():
    assert hints(profile()) == ()
    assert hints(profile([code(spills=40), kernel()], both(span_us=10_000.0, iteration_us=10_000.0))) == ()


def test_empty_profiles_have_no_hints():
    empty = RankProfile(rank=0, iteration_us=10, top=())
    for ranks in ((empty,), (empty, empty)):
        assert hints(Profile(candidate="c", dtype="bfloat16", iterations=5, trace="", ranks=ranks)) == ()


def test_names_stay_names():
    assert short_name("void (anonymous namespace)::move<bf16>(float*)") == "move<bf16>"
    assert short_name("Memcpy PtoP (Device -> Device)") == "Memcpy PtoP (Device -> Device)"
    assert len(short_name("f<" + "int, " * 100 + "int>()")) == 48
