"""Ratios and times as text."""

import pytest

from harness.types import Ratio
from harness.wording import figure, interval, ratio_text, time_text


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
