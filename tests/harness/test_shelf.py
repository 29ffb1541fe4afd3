"""Copies of outputs until there is no more room, and by chance from then on."""

import mmap
import resource
from collections import Counter

import pytest
import torch

from harness.platforms import LEAST_KEPT
from harness.ring import same_bits, tensors
from harness.shelf import Shelf


def small() -> Shelf:
    shelf = Shelf()
    shelf._BYTES = 2048
    return shelf


def test_copies_do_not_change_with_what_was_copied():
    shelf, value = small(), {"a": torch.arange(100.0), "b": [torch.ones(3, dtype=torch.bfloat16), 5]}
    for key in range(20):
        shelf.offer(key, value)
    value["a"].zero_()
    assert 2 <= len(shelf.copies) < 20
    assert all(float(copy["a"].sum()) == 4950 and copy["b"][1] == 5 for copy in shelf.copies.values())
    shelf.clear()
    assert shelf.copies == {}


def test_what_does_not_stay_is_copied_all_the_same(monkeypatch):
    """Who watches the copying would see what is kept, and the copies that are made take their time."""
    shelf, values, copied = small(), torch.arange(100.0), []
    put = Shelf._put
    monkeypatch.setattr(Shelf, "_put", lambda *given: copied.append(put(*given)) or copied[-1])
    for key in range(50):
        shelf.offer(key, values)
    assert len(copied) == 50 > len(shelf.copies)
    assert all(bool((copy == values).all()) for copy in (*copied, *shelf.copies.values()))


def test_the_first_of_a_key_stays():
    shelf = small()
    for value in (1.0, 2.0):
        shelf.offer("one", torch.full((10,), value))
    assert float(shelf.copies["one"][0]) == 1


def test_each_of_those_offered_is_as_likely_to_be_there_in_the_end():
    seen, shelf = Counter(), small()
    for _ in range(2000):
        shelf.clear()
        for key in range(16):
            shelf.offer(key, torch.full((100,), float(key)))
        assert all(bool((copy == key).all()) for key, copy in shelf.copies.items())
        seen.update(list(shelf.copies))
    there = len(shelf.copies)
    assert LEAST_KEPT <= there < 16
    assert sum(seen.values()) == 2000 * there
    # Nine standard deviations of the binomial count of each.
    assert min(seen[key] for key in range(16)) > 2000 * there / 16 - 9 * (2000 * there / 16) ** 0.5


@pytest.mark.parametrize("sizes", [[200, 300, 400, 500, 600, 1], [600, 1, 2, 3000, 4000, 5000], [1] * 7 + [900] * 9])
def test_the_least_number_is_kept_however_their_sizes_differ(sizes):
    shelf = small()
    for key, size in enumerate(sizes):
        shelf.offer(key, [torch.full((size,), float(key)), torch.full((3,), key, dtype=torch.int8)])
        right = [[torch.full((sizes[k],), float(k)), torch.full((3,), k, dtype=torch.int8)] for k in shelf.copies]
        for copy, expected in zip(shelf.copies.values(), right, strict=True):
            assert all(map(same_bits, tensors(copy), tensors(expected)))
        assert len(shelf.copies) >= min(key + 1, LEAST_KEPT)


def test_outputs_without_tensors():
    shelf = small()
    for key in range(100):
        shelf.offer(key, None)
    assert len(shelf.copies) == 100


def test_copies_find_pages_that_are_there():
    shelf, value = Shelf(), torch.ones(4 << 20, dtype=torch.uint8)
    faults = []
    for key in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        shelf.offer(key, value)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        if key % 3 == 2:
            shelf.prepare()
    pages = value.nbytes // mmap.PAGESIZE
    assert sum(faults[3:]) < pages / 4 and bool((shelf.copies[11] == 1).all())
