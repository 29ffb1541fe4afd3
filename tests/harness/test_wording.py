"""Ratios and times as text."""

import pytest

from harness.types import Latency, Measurement, Ratio, Timing
from harness.wording import figure, graphs_text, interval, one_line, ratio_text, time_text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.7, "1.70"), (26.618, "26.62"), (0.05, "0.05"), (0.01, "0.01"), (0.0048, "0.0048"), (0.00048123, "0.00048"),
     (0.0000051, "0.0000051"), (0.0, "0.00")],
)  # fmt: skip
def test_a_small_figure_keeps_two_significant_digits(value, shown):
    assert figure(value) == shown


def test_a_ratio_has_an_interval_or_none():
    assert ratio_text(Ratio(value=1.7, low=1.65, high=1.75)) == "1.70x [1.65, 1.75]"
    assert ratio_text(Ratio(value=0.00048, low=0.00041, high=0.012)) == "0.00048x [0.00041, 0.01]"
    assert ratio_text(Ratio(value=26.618, low=26.618, high=26.618)) == "26.62x"
    assert interval(Ratio(value=0.5, low=0.0004, high=0.6), 3) == "[0.00040, 0.600]"


def test_pkb_takes_means():
    assert time_text(13.04, "ringsmith") == "13.0 us" and time_text(13.04, "pkb") == "mean 13.0 us"


@pytest.mark.parametrize(("host_us", "said"), [(None, False), (3.9, True)])
def test_graphs_of_single_calls_are_told(host_us, said):
    one = Latency(median_us=14.2, p10_us=14.0, p90_us=14.4, min_us=13.9, samples=90, skew_us=0.1)
    timing = Timing(
        candidate=one.model_copy(update={"host_us": 20.0}), reference=one, speedup=Ratio(value=1, low=1, high=1)
    )
    device = timing.model_copy(update={"candidate": one.model_copy(update={"host_us": host_us})})
    assert bool(graphs_text(Measurement(protocol="ringsmith", eager=timing, device=device))) is said
    assert graphs_text(Measurement(protocol="ringsmith", eager=timing)) == ""


@pytest.mark.parametrize("said", ["a\n b\x1b[2J  c", 5 * "\n" + "a b�[2J c", "a\tb\u2028[2J c"])
def test_what_others_said_is_one_line(said):
    assert one_line(said) == "a b�[2J c"


def test_a_long_text_is_cut():
    assert one_line("x" * 20, 10) == "xxxxxxx..." and one_line(" " * 9000 + "x" * 9000, 10) == "xxxxxxx..."
