"""Rings of inputs: both sides see the same changes, nothing but contents tells them, and writing into them shows."""

import itertools

import pytest
import torch

from harness.ring import (
    CHANGED,
    Ring,
    Use,
    alias,
    alike,
    clone,
    linear,
    overwrite,
    same_bits,
    sparse,
    tensors,
)
from harness.slots import exchange

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64]


def slots(dtype=torch.float32):
    draw = torch.Generator().manual_seed(3)
    values = lambda *shape: torch.randn(*shape, generator=draw).to(dtype)  # noqa: E731
    return [(values(64, 32), torch.arange(7), 3, values(1), values(5), None) for _ in range(2)]


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_rings_go_through_the_same_contents(dtype, few):
    one, other = Ring(slots(dtype), 3), Ring(slots(dtype), 3)
    assert len(one) == 6
    one.draw(7, few=few)
    other.draw(7, few=few)
    for sample, entry in ((0, 5), (4, 0), (1, 7), (-1, 1)):  # one side changes only what is asked of it
        one.change(sample)
        other.change(sample, [entry])
        assert all(same_bits(a, b) for a, b in zip(tensors(one[entry]), tensors(other[entry]), strict=True))
    assert not same_bits(one[0][0], other[0][0])  # still of sample 4


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("how", ["as it comes next", "of other entries", "of another sample", "before all is restored"])
def test_a_change_may_be_prepared(how, few):
    """What was prepared is written if it is what is asked for next, and by nothing but that."""
    one, other = (Ring([routed(seed) for seed in range(4)], 3, CHOSEN, "always") for _ in range(2))
    for ring in (one, other):
        ring.draw(7, few=few)
        ring.change(0, [0, 1])
    before = [clone(one[i]) for i in range(12)]
    one.prepare(*{"of other entries": (1, [5, 6]), "of another sample": (2, [0, 13])}.get(how, (1, [0, 13])))
    assert all(same_bits(a, b) for i in range(12) for a, b in zip(tensors(before[i]), tensors(one[i]), strict=True))
    for ring in (one, other):
        if how == "before all is restored":
            ring.restore()
        ring.change(1, [0, 13])
    for i in range(12):
        assert one[i][2:] == other[i][2:]
        assert all(same_bits(a, b) for a, b in zip(tensors(one[i]), tensors(other[i]), strict=True))
    assert one.intact() and other.intact()


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_change_shows_in_nothing_but_contents(dtype, few):
    given = slots(dtype)
    tensor, before = given[0][0], given[0][0].clone()
    ring = Ring(given, 2)
    address, version = tensor.data_ptr(), tensor._version
    seen = []
    ring.draw(1, few=few)
    for sample in range(9):
        ring.change(sample)
        changed = int((tensor != before).sum())
        assert 0 < changed <= CHANGED if few else changed > 0.9 * tensor.numel()
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        known = torch.view_as_real(before) if tensor.is_complex() else before
        assert set(values.flatten().tolist()) <= set(known.flatten().tolist())
        assert (tensor.data_ptr(), tensor._version) == (address, version)
        assert not torch.equal(ring[0][0], ring[2][0])  # the clone changes in its own way
        seen.append(tensor.clone())
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))
    assert ring.intact() and torch.equal(tensor, before)


def test_no_two_samples_have_the_same_values_in_another_order():
    """Whoever looks at no order at all, as a sort does, has something else to do each time."""
    values = torch.randperm(4096, generator=torch.Generator().manual_seed(4)).float()
    ring = Ring([(values.clone(),)], 2)
    ring.draw(3)
    found = {tuple(values.tolist())}
    for sample in range(20):
        ring.change(sample)
        found |= {tuple(ring[entry][0].sort().values.tolist()) for entry in range(2)}
    assert len(found) == 41


def test_ranks_change_equal_tensors_alike_and_others_not():
    rows = torch.arange(640.0).reshape(10, 64)
    rings = [Ring([(rows.clone(), rows + rank)], 1) for rank in range(2)]
    for ring in rings:
        ring.draw(5)
        ring.change(3)
    (equal, one), (same, other) = (ring[0] for ring in rings)
    assert torch.equal(equal, same) and not torch.equal(other - 1, one)
    turned = {tuple(row) for row in equal.tolist()} & {tuple(row) for row in rows.tolist()}
    assert not turned  # no row is one of the former


def test_integers_and_single_elements_stay():
    ring = Ring(slots(), 2)
    ring.draw(1)
    ring.change(2)
    assert torch.equal(ring[0][1], torch.arange(7)) and torch.equal(ring[0][3], slots()[0][3])


@pytest.mark.parametrize("entry", range(4))
@pytest.mark.parametrize("which", [0, 1, 4])
def test_writing_into_an_input_shows(entry, which):
    ring = Ring(slots(), 2)
    ring.draw(5)
    ring.change(3)
    flat = ring[entry][which].reshape(-1)
    flat[len(flat) // 3] += 1
    assert not ring.intact()


def test_a_ring_without_floats_does_nothing():
    ring = Ring([(torch.arange(4), 2), (torch.arange(4), 1)], 2)
    ring.draw(1)
    ring.change(2)
    assert ring.intact() and ring[1][1] == 1


def test_overwriting_keeps_memory_and_version_and_takes_plain_values():
    old, new = (torch.zeros(3, 4), [torch.zeros(2), 1]), (torch.ones(3, 4), [torch.ones(2), 2])
    address, version = old[0].data_ptr(), old[0]._version
    now = overwrite(old, new)
    assert now[0] is old[0] and now[1][0] is old[1][0] and now[1][1] == 2
    assert old[0].sum() == 12 and (old[0].data_ptr(), old[0]._version) == (address, version)
    other = (torch.ones(5), [torch.ones(2), 2])
    assert overwrite(old, other) is other


def test_an_alias_is_the_same_memory():
    tensor = torch.arange(12.0).reshape(3, 4)[:, 1:]
    assert torch.equal(alias(tensor), tensor) and alias(tensor).data_ptr() == tensor.data_ptr()


def test_a_clone_is_contiguous_if_asked():
    tensor = torch.arange(6.0).reshape(2, 3).t()
    assert clone([tensor], contiguous=True)[0].is_contiguous() and not clone([tensor])[0].is_contiguous()


# -- arguments of other kinds, and those that calls may write into ----------------------------------------------------


def layered():
    """A layer, a sparse tensor, a list that calls write into, labels that may change."""
    draw = torch.Generator().manual_seed(4)
    layer = linear(torch.randn(8, 6, generator=draw), torch.randn(8, generator=draw))
    matrix = sparse(torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.randn(3, generator=draw), (3, 3))
    grads = [torch.randn(40, generator=draw), None, torch.randn(30, generator=draw)]
    return layer, matrix, grads, torch.randint(100, (50,), generator=draw)


USE = Use(updates=(2,), changing=(0, 2, 3))


def test_layers_and_sparse_tensors_are_copied_whole():
    layer, matrix, *_ = given = layered()
    copy = clone(given)
    x = torch.ones(6)
    assert torch.equal(copy[0](x), layer(x)) and copy[0].weight.data_ptr() != layer.weight.data_ptr()
    assert torch.equal(copy[1].to_dense(), matrix.to_dense())
    assert len(tensors(given)) == 2 + 2 + 2 + 1


def test_only_chosen_arguments_change_integers_among_them():
    slot = layered()
    before = clone(slot)
    ring = Ring([slot], 2, USE)
    ring.draw(3)
    ring.change(1)
    same = [
        [torch.equal(a, b) for a, b in zip(tensors(x), tensors(y), strict=True)]
        for x, y in zip(slot, before, strict=True)
    ]
    assert same == [[False, False], [True, True], [False, False], [False]]
    assert ring.intact()


def test_what_calls_may_write_is_restored_with_the_change_of_the_sample():
    one, other = Ring([layered()], 3, USE), Ring([layered()], 3, USE)
    for ring in (one, other):
        ring.draw(11)
        ring.change(0)
    expected = clone(one[1][2])
    for _ in range(2):  # the same sample again, as for several outputs of a burst
        for entry in range(3):
            one[entry][2][0].zero_()
            one[entry][2][2].mul_(2)
        one.change(0)
        assert all(map(torch.equal, tensors(one[1][2]), tensors(expected)))
    for ring in (one, other):
        ring.change(2)
    assert all(map(torch.equal, tensors(one[1][2]), tensors(other[1][2])))
    assert one.intact() and all(map(torch.equal, tensors(one[0][2]), tensors(layered()[2])))


def test_writing_where_a_call_may_not_still_shows():
    ring = Ring([layered()], 2, USE)
    ring.draw(1)
    ring.change(0)
    ring[1][2][0].zero_()
    ring[1][0].weight.data[0, 0] += 1
    assert not ring.intact()


def test_a_list_that_is_written_belongs_to_the_call():
    ring = Ring([layered()], 1, USE)
    ring[0][2][0] = torch.zeros(3)
    assert ring[0][2][0].shape == (40,)
    assert USE.answer("out", ring[0])[1][0][1] is None


# -- slots in each other's place ---------------------------------------------------------------------------------------


def routed(seed):
    """What is changed by elements, indices and counts that go together, and a number."""
    random = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 9, (4,), generator=random)
    return torch.randn(64, generator=random), counts, counts.tolist(), {"eps": 0.5 + seed}


CHOSEN = Use(changing=(0,))


def together(arguments):
    return arguments[1].tolist() == arguments[2]


def test_entries_take_each_others_contents_whole():
    given = [routed(seed) for seed in range(4)]
    one, other = (Ring([routed(seed) for seed in range(4)], 3, CHOSEN, "eager") for _ in range(2))
    where = [[t.data_ptr() for t in tensors(one[i])] for i in range(12)]
    seen = set()
    for ring in (one, other):
        ring.draw(7)
    for sample in range(20):
        for ring in (one, other):
            ring.change(sample)
        for copy in range(3):
            entries = [one[4 * copy + slot] for slot in range(4)]
            assert all(map(together, entries))
            # A turn: each slot is there once.
            assert sorted(entry[3]["eps"] for entry in entries) == [0.5, 1.5, 2.5, 3.5]
            seen |= {(slot, entry[3]["eps"]) for slot, entry in enumerate(entries)}
        for i in range(12):
            assert all(map(torch.equal, tensors(one[i]), tensors(other[i])))
            assert one[i][2:] == other[i][2:] == given[int(one[i][3]["eps"])][2:]
            assert torch.equal(one[i][1], given[int(one[i][3]["eps"])][1])
    assert len(seen) == 16
    assert one.intact()
    assert [[t.data_ptr() for t in tensors(one[i])] for i in range(12)] == where
    assert all(torch.equal(one[i][0], given[i % 4][0]) and one[i][2:] == given[i % 4][2:] for i in range(12))


def test_writing_into_exchanged_contents_shows():
    ring = Ring([routed(seed) for seed in range(4)], 1, CHOSEN, "always")
    ring.draw(1)
    samples = iter(range(100))
    while ring[2][3]["eps"] == 2.5:
        ring.change(next(samples))
    ring[2][1][0] += 1
    assert not ring.intact() and ring.intact()


@pytest.mark.parametrize(
    "when, how, moves",
    [
        ("never", {}, False),
        ("eager", {}, True),
        ("eager", {"captured": True}, False),
        ("eager", {"few": True}, False),
        ("always", {"captured": True}, True),
        ("always", {"few": True}, False),
    ],
)
def test_when_contents_are_exchanged(when, how, moves):
    ring = Ring([routed(seed) for seed in range(4)], 1, CHOSEN, when)
    ring.draw(3, **how)
    before, moved = [ring[i][1].tolist() for i in range(4)], False
    for sample in range(9):
        ring.change(sample)
        moved |= [ring[i][1].tolist() for i in range(4)] != before
    assert moved == moves


def test_a_problem_of_few_changes_has_few_beside_the_exchange():
    ring = Ring([routed(seed) for seed in range(4)], 1, Use(few=True), "eager")
    ring.draw(3)
    for sample in range(5):
        ring.change(sample)
        for i in range(4):
            same = ring[i][0] == routed(int(ring[i][3]["eps"]))[0]
            assert 0 < int((~same).sum()) <= CHANGED


@pytest.mark.parametrize(
    "others, fit, whole",
    [
        (lambda: routed(5), True, False),
        (lambda: (*routed(5)[:2], *routed(0)[2:]), True, True),
        (lambda: (torch.zeros(65), *routed(0)[1:]), False, False),
        (lambda: (torch.zeros(64, dtype=torch.bfloat16), *routed(0)[1:]), False, False),
        (lambda: (*routed(0)[:2], [1, 2], routed(0)[3]), False, False),
        (lambda: (*routed(0)[:3], {"other": 0.5}), False, False),
    ],
)
def test_slots_fit_by_shape_and_type_and_are_alike_by_all_but_contents(others, fit, whole):
    pair = [routed(0), others()]
    assert (alike(pair), alike(pair, whole=True)) == (fit, whole)


def test_layers_and_sparse_tensors_are_alike_by_shape():
    def matrix(places):
        return sparse(torch.arange(2 * places).reshape(2, places), torch.randn(places), (99, 99))

    assert alike([(torch.nn.Linear(3, 4), matrix(5)), (torch.nn.Linear(3, 4), matrix(5))], whole=True)
    assert not alike([(torch.nn.Linear(3, 4),), (torch.nn.Linear(3, 4, bias=False),)])
    assert not alike([(matrix(5),), (matrix(6),)])


@pytest.mark.parametrize(
    "ranks, said",
    [
        ([(True, True), (True, True)], "always"),
        ([(True, True), (True, False)], "eager"),
        ([(True, True), (False, False)], "never"),
    ],
)
def test_ranks_exchange_together_or_not_at_all(ranks, said):
    assert exchange([{"fit": fit, "alike": whole} for fit, whole in ranks]) == said
