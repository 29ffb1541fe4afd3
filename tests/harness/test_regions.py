"""Where wrong elements are, in words."""

import pytest
import torch

from harness import regions


def wrong(shape, *index):
    bad = torch.zeros(shape, dtype=torch.bool)
    bad[index] = True
    return bad


def texts(bad, parts=4):
    return [region.text for region in regions.find(bad, parts)]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (torch.ones(8, 8, dtype=torch.bool), ["everything"]),
        (torch.tensor(True), ["the value"]),
        (wrong((8, 8), slice(2, 4)), ["chunk 1 of 4 (rows 2..3)"]),
        (wrong((8, 8), [0, 1, 6, 7]), ["chunk 0 of 4 (rows 0..1)", "chunk 3 of 4 (rows 6..7)"]),
        (wrong((8, 8), slice(None), slice(2, 4)), ["chunk 1 of 4 (columns 2..3)"]),
        (wrong((4, 3, 5), 3), ["chunk 3 of 4 (index 3 of axis 0)"]),
        (wrong((9, 8), slice(7, 9)), ["rows 7..8 (the last)"]),
        (wrong((9, 8), 3, slice(1, 6)), ["row 3, columns 1..5"]),
        (wrong((9, 7), slice(2, 9, 3)), ["every 3rd of the rows, from 2"]),
        (wrong((21,), 20), ["element 20 (the last)"]),
    ],
)
def test_a_region_is_said_as_a_kernel_has_it(bad, expected):
    assert texts(bad) == expected


def test_a_stretch_in_memory_order():
    bad = torch.zeros(9, 10, dtype=torch.bool)
    bad.view(-1)[55:63] = True
    assert texts(bad) == ["elements 55..62 in memory order"]
    bad.view(-1)[55:] = True
    assert texts(bad) == ["elements 55..89 in memory order, the end of the tensor"]


def test_a_chunk_in_memory_order():
    bad = torch.zeros(14, 40, dtype=torch.bool)
    bad.view(-1)[280:420] = True
    (region,) = regions.find(bad, 4)
    assert region.text == "chunk 2 of 4 (elements 280..419 in memory order)"
    assert (region.chunk, region.axis) == (2, -1)


def test_scattered_elements_are_said_to_be_that():
    bad = torch.zeros(64, 64, dtype=torch.bool)
    bad.view(-1)[:: 64 * 13 + 5] = True
    (region,) = regions.find(bad, 4)
    assert "scattered" in region.text and region.chunk is None


def test_some_elements_of_a_wrong_chunk_are_right_by_chance():
    bad = wrong((8, 100), slice(2, 4))
    bad[2, ::9] = False
    assert texts(bad) == ["chunk 1 of 4 (rows 2..3)"]


def test_an_index_finds_its_elements():
    bad = wrong((12, 6), slice(3, 12, 4), slice(2, 5))
    (region,) = regions.find(bad, 5)
    assert bool(bad[region.index].all()) and int(bad[region.index].sum()) == int(bad.sum())
