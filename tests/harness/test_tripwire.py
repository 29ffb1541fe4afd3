"""What is noticed of changes in a rank's own process, here in this one."""

import builtins
import sys

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness import collectives, guard, platforms
from harness.guard import Tripwire


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.fixture
def tripwire():
    return Tripwire()


def test_nothing_has_changed(tripwire):
    tripwire.look()
    with Operators(), Functions():
        torch.ones(2).clone()
    with torch.device("cpu"):  # what torch.set_default_device leaves on
        tripwire.look()
        assert tripwire.tripped() == []


@pytest.mark.parametrize(("mode", "what"), [(Functions, "functions"), (Operators, "operators")])
def test_a_mode_that_is_still_on(tripwire, mode, what):
    with mode():
        (found,) = tripwire.tripped()
        assert found.startswith(f"torch's {what} (a {mode.__mro__[1].__name__} is")
    assert tripwire.tripped() == []


@pytest.mark.parametrize("mode", [Functions, Operators])
def test_a_mode_that_was_on_when_an_output_was_copied(tripwire, mode):
    """Left by a timer before anybody asked."""
    with mode():
        tripwire.look()
    assert len(tripwire.tripped()) == 1


def test_what_is_put_right_again_is_seen_once_in_eight_copies(tripwire, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "is_meta", property(lambda self: False), raising=False)
        patched.setattr(torch.Tensor, "requires_grad", property(lambda self: False), raising=False)
        for _ in range(300):
            tripwire.look()
    assert tripwire.tripped() == ["torch.Tensor.is_meta", "torch.Tensor.requires_grad"]


@pytest.mark.filterwarnings("ignore:Warning only once")  # that a kernel has been replaced
def test_kernels_of_somebody_else(tripwire):
    library = torch.library.Library("aten", "IMPL")
    library.impl("equal", lambda one, other: True, "CPU")
    try:
        assert tripwire.tripped() == ["the kernels of aten::equal"]
    finally:
        library._destroy()
    assert tripwire.tripped() == []
    own = torch.library.Library("of_a_candidate", "DEF")
    own.define("twice(Tensor x) -> Tensor")
    own.impl("twice", lambda x: x * 2, "CPU")
    assert tripwire.tripped() == []
    own._destroy()


@pytest.mark.parametrize(
    ("where", "name", "said"),
    [
        (platforms, "set", "harness.platforms.set"),
        (guard, "sorted", "harness.guard.sorted"),
        (platforms, "torch", "harness.platforms.torch"),
        (collectives, "count", "harness.collectives.count"),
        (builtins, "set", "builtins.set"),
        (torch.nn, "Linear", "torch.nn.Linear"),
    ],
)
def test_a_name_that_stands_before_another(tripwire, where, name, said):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(where, name, lambda *given: [], raising=False)
        assert tripwire.tripped() == [said]
    assert tripwire.tripped() == []


def test_another_module_in_the_place_of_ours(tripwire, monkeypatch):
    monkeypatch.setitem(sys.modules, "harness.ring", sys)
    assert tripwire.tripped() == ["sys.modules[harness.ring]"]


def test_what_others_leave_among_the_built_in_names_is_theirs(tripwire, monkeypatch):
    monkeypatch.setattr(builtins, "_", str, raising=False)  # as gettext.install() and interactive interpreters do
    monkeypatch.setattr(builtins, "profile", print, raising=False)
    assert tripwire.tripped() == []
