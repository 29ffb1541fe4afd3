from harness.neighbours import pack


def alike(one: int, other: int) -> int:
    return 0


def test_devices_that_are_all_alike_are_taken_in_order() -> None:
    assert pack([7, 0, 1, 2, 3, 4, 5, 6], 4, alike) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert pack([0, 1, 2, 3, 4, 6, 7], 4, alike) == [(0, 1, 2, 3)]
    assert pack([0, 1, 2], 1, alike) == [(0,), (1,), (2,)]
    assert pack([0, 1, 2], 4, alike) == []


def test_neighbours_stay_together_whatever_their_numbers() -> None:
    bridges = [{0, 5}, {1, 4}, {2, 7}, {3, 6}]

    def by_bridge(one: int, other: int) -> int:
        return int({one, other} in bridges)

    assert {frozenset(chosen) for chosen in pack(range(8), 2, by_bridge)} == set(map(frozenset, bridges))

    # Two boards of four; within a board the bridges.
    def by_board(one: int, other: int) -> int:
        return 10 * (one % 2 == other % 2) + by_bridge(one, other)

    assert pack(range(8), 4, by_board) == [(0, 2, 4, 6), (1, 3, 5, 7)]
