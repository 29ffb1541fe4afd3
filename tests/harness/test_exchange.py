"""Tensors through a shared file: any value that a candidate may return, and any description that one may forge."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from harness.exchange import Exchange, MalformedError, Other, structure_error
from harness.wire import Channel, pair

DTYPES = [
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.fixture
def sides(tmp_path):
    """Writer and reader of one file, as in two processes."""
    return Exchange(tmp_path / "outputs.0"), Exchange(tmp_path / "outputs.0")


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(sides, dtype):
    drawn = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)) * 20
    value = (drawn > 0) if dtype is torch.bool else drawn.abs().to(dtype) if dtype is torch.uint8 else drawn.to(dtype)
    writer, reader = sides
    assert same(reader.read(writer.write(value), "cpu"), value)


def test_nested_values(sides):
    writer, reader = sides
    value = {
        "a": (torch.arange(3), [torch.zeros(2, 2, dtype=torch.bfloat16), None]),
        "b": {"flag": True, "n": 3, "x": 2.5, "text": "t", "empty": ()},
        "scalar": torch.tensor(4.0),
    }
    assert same(reader.read(writer.write(value), "cpu"), value)


def test_what_is_nested_too_deep_has_no_description(sides):
    """It must not come so deep that `wire` takes it for forged."""
    value: object = torch.ones(1)
    for _ in range(32):
        value = [value]
    reply = {"tree": sides[0].write(value)}
    ours, theirs = pair(untrusted=True)
    with theirs:
        Channel(theirs).send(reply)
        assert ours.receive(1) == reply
        ours.close()
    for deeper in ([value], {"a": value}, (value,)):
        with pytest.raises(MalformedError, match="nested"):
            sides[0].write(deeper)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64], ids=str)
def test_empty_tensors(sides, shape, dtype):
    writer, reader = sides
    value = [torch.empty(shape, dtype=dtype), torch.ones(2), torch.empty(shape, dtype=dtype)]
    assert same(reader.read(writer.write(value), "cpu"), value)
    assert same(reader.read(writer.write(value[0]), "cpu"), value[0])


def test_views_arrive_as_their_values(sides):
    writer, reader = sides
    base = torch.arange(24.0).reshape(4, 6)
    values = (base.T, base[::2, 1:4], base[0].expand(3, 6), torch.arange(4) * 1j, (torch.arange(4) * 1j).conj())
    for sent, received in zip(values, reader.read(writer.write(values), "cpu"), strict=True):
        assert torch.equal(sent, received) and received.is_contiguous()


def test_a_tensor_with_gradient_and_a_named_tuple(sides):
    writer, reader = sides
    pair = namedtuple("pair", "values indices")(torch.ones(2, requires_grad=True), torch.arange(2))
    values, indices = reader.read(writer.write(pair), "cpu")
    assert torch.equal(values, torch.ones(2)) and torch.equal(indices, torch.arange(2))
    assert structure_error((torch.ones(2), torch.arange(2)), writer.write(pair)) is None


def test_what_cannot_cross_is_known_by_its_type(sides):
    writer, reader = sides
    (other,) = reader.read(writer.write([SimpleNamespace()]), "cpu")
    assert isinstance(other, Other) and other.type_name == "SimpleNamespace"


def test_the_file_grows_and_later_values_replace_earlier_ones(sides):
    writer, reader = sides
    for size in (10, 100_000, 3, 1_000_000, 0):
        value = torch.full((size,), float(size))
        assert same(reader.read(writer.write(value), "cpu"), value)


def test_what_was_read_is_a_copy(sides):
    writer, reader = sides
    read = reader.read(writer.write(torch.ones(4)), "cpu")
    writer.write(torch.zeros(4))
    assert read.tolist() == [1, 1, 1, 1]


def leaf(**changes) -> dict:
    return {"kind": "tensor", "shape": [4], "dtype": "float32", "device": "cpu", "offset": 0, **changes}


MALFORMED = {
    "negative size": leaf(shape=[-4]),
    "two negative sizes": leaf(shape=[-2, -2]),
    "huge size": leaf(shape=[2**70]),
    "sizes whose product is huge": leaf(shape=[2**40, 2**40]),
    "fractional size": leaf(shape=[2.5]),
    "text as size": leaf(shape=["4"]),
    "text as shape": leaf(shape="44"),
    "no shape": leaf(shape=None),
    "offset outside": leaf(offset=1 << 20),
    "offset beyond any file": leaf(offset=1 << 62),
    "offset beyond 64 bits": leaf(offset=1 << 80),
    "negative offset": leaf(offset=-64),
    "unaligned offset": leaf(offset=4),
    "fractional offset": leaf(offset=64.5),
    "text as offset": leaf(offset="0"),
    "unknown dtype": leaf(dtype="float12"),
    "dtype that is no name": leaf(dtype=["float32"]),
    "attribute of torch that is no dtype": leaf(dtype="load"),
    "larger than the file": leaf(shape=[100_000]),
    "empty object": {},
    "tensor without keys": {"kind": "tensor"},
    "list without items": {"kind": "list"},
    "items that are no list": {"kind": "list", "items": 3},
    "items that are no objects": {"kind": "list", "items": [1, "x"]},
    "dict with too few keys": {"kind": "dict", "keys": ["a"], "items": [leaf(), leaf()]},
    "dict with list keys": {"kind": "dict", "keys": [[1]], "items": [leaf()]},
    "plain without value": {"kind": "plain"},
    "unknown kind": {"kind": "pickle"},
    "list": [],
    "text": "tensor",
    "nothing": None,
}


@pytest.mark.parametrize("tree", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_description_is_only_that(sides, tree):
    writer, reader = sides
    writer.write(torch.arange(16.0))
    with pytest.raises(MalformedError):
        reader.read(tree, "cpu")
    assert same(reader.read(leaf(), "cpu"), torch.arange(4.0)), "the exchange stays usable"


def test_a_deep_description_is_malformed(sides):
    tree = leaf()
    for _ in range(2000):
        tree = {"kind": "list", "items": [tree]}
    with pytest.raises(MalformedError):
        sides[1].read(tree, "cpu")


def test_a_file_that_is_missing_or_was_cut_is_malformed(sides, tmp_path):
    writer, reader = sides
    with pytest.raises(MalformedError):
        reader.read(leaf(), "cpu")
    tree = writer.write(torch.zeros(4096))
    reader.read(tree, "cpu")
    with (tmp_path / "outputs.0").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(MalformedError, match="shorter"):
        reader.read(tree, "cpu")


def described(value) -> dict:
    """A description without data."""
    from harness.exchange import _describe

    return _describe(value, [])


X = torch.zeros(2, 3)
DEVIATIONS = {
    "not a tensor": (X, 1.0, "out must be a tensor, not a float"),
    "forgotten return": (X, None, "out must be a tensor, not None"),
    "tuple for tensor": (X, (X,), "out must be a tensor, not a tuple"),
    "foreign object": (X, SimpleNamespace(), "out must be a tensor, not an object of type SimpleNamespace"),
    "shape": (X, X.T, "out has shape (3, 2); it must be (2, 3)"),
    "missing dimension": (X, X[0], "out has shape (3,); it must be (2, 3)"),
    "dtype": (X, X.half(), "out has dtype float16; it must be float32"),
    "device": (X, X.to("meta"), "out is on meta; it must be on cpu"),
    "tensor for tuple": ((X, X), X, "out must be a tuple of 2, not a tensor"),
    "too few items": ((X, X), (X,), "out has 1 items; it must have 2"),
    "item": ((X, X), (X, X.T), "out[1] has shape (3, 2); it must be (2, 3)"),
    "deep item": ((X, [X, {"a": X}]), (X, [X, {"a": X.int()}]), "out[1][1]['a'] has dtype int32; it must be float32"),
    "list for dict": ({"a": X}, [X], "out must be a dict with the keys a"),
    "wrong keys": ({"a": X, "b": X}, {"a": X, "c": X}, "out must be a dict with the keys a, b"),
    "number for None": ((X, None), (X, 0.0), "out[1] must be None, not a float"),
    "None for number": ((X, 3), (X, None), "out[1] must be 3, not None"),
    "text for number": ((X, 3), (X, "3"), "out[1] must be 3, not a str"),
    "other text": ("mean", "PASSED", "out is 'PASSED'; it must be 'mean'"),
    "tensor for number": ((X, 3), (X, X), "out[1] must be 3, not a tensor"),
}


@pytest.mark.parametrize(("expected", "got", "message"), DEVIATIONS.values(), ids=DEVIATIONS)
def test_each_deviation_of_structure_in_one_line(expected, got, message):
    assert structure_error(expected, described(got)) == message


def test_equal_structure_is_no_error_and_a_list_may_stand_for_a_tuple():
    value = (X, [X.half(), None, 3], {"a": X, 2: X})
    assert structure_error(value, described(value)) is None
    assert structure_error((X, X), described([X, X])) is None
    assert structure_error({"a": X, "b": X}, described({"b": X, "a": X})) is None
    # Only the kind of device counts: the reference's cuda:0 is another process's cuda:0.
    assert structure_error(X, described(X) | {"device": "cpu"}) is None


@pytest.mark.parametrize("tree", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_description_never_ends_the_judge(tree):
    for expected in (X, (X, X), {"a": X}, 3):
        try:
            error = structure_error(expected, tree)
        except (KeyError, TypeError):  # what ReferenceRank._check takes for a shape error
            continue
        assert error is None or "\n" not in error
