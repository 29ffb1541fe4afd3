"""What candidates import: compile C++ or CUDA in seconds, symmetric buffers with peer pointers, signals and barriers.

    from harness import kit

    lib = kit.build(SOURCE)                        # functions declared extern "C" become attributes
    buf = kit.symmetric((1024, 1024), torch.float32)   # collective; zero-filled
    lib.reduce(x, buf.ptrs, buf.signals, out, x.numel(), kit.rank(), kit.world_size(), kit.stream())

The same calls work on both platforms: `kit.build` runs g++ on cpu and nvcc on cuda. C side: `#include "ringsmith.h"`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness import built, cache, compiler, policy
from harness.platforms import Platform, SymmetricMemory
from harness.progress import Phase, Progress

SIGNALS = 16384
"""uint32 words in each rank's signal pad, zero at the start."""
_INCLUDE = Path(__file__).parent / "include"


class BuildError(Exception):
    """The compiler refused the source; the text is its output."""


class KitError(Exception):
    """kit was used wrongly; the message says what it wants."""


@dataclass
class _State:
    """Set by the harness before the candidate is imported."""

    platform: Platform
    rank: int
    world_size: int
    device: torch.device | None
    progress: Progress
    source: str
    """The candidate's own text, so that compiler messages can name its lines."""
    sequence: int = 0
    built: list[str] | None = None
    profiling: bool = False
    tracing: bool = False
    """Whether calls of library functions are noted in the progress words."""


_state: _State | None = None


def bind(state: _State) -> None:
    """For the harness."""
    global _state
    _state = state


def _bound() -> _State:
    if _state is None:
        raise KitError("kit works only inside the harness: run the candidate with `ringsmith eval`")
    return _state


def rank() -> int:
    return _bound().rank


def world_size() -> int:
    return _bound().world_size


def stream() -> int:
    """Handle of the current CUDA stream, for a `cudaStream_t` parameter; 0 on cpu."""
    return _bound().platform.stream()


# ---------------------------------------------------------------------------------------------------------------------
# Build


def build(source: str, flags: Sequence[str] = ()) -> Library:
    """Compile C++ (cpu) or CUDA (cuda) and load it. Cached by content, compiled once for all ranks.

    Raises BuildError with the compiler's output; line numbers in it are the candidate's own. Raises PolicyError if what
    it made holds something that this host forbids."""
    state = _bound()
    if not isinstance(source, str):
        raise KitError(f"kit.build takes the source text, not {type(source).__name__}")
    functions = parse_functions(source)
    command = state.platform.compile_command(Path("SOURCE"), Path("OUTPUT"), list(flags))
    # The position in the candidate is part of the key: messages and -lineinfo carry its lines.
    text = line_directive(source, state.source) + source
    header = (_INCLUDE / "ringsmith.h").read_bytes()
    allow = policy.allowed()
    name = cache.key(text, command, state.platform.target(), cache.tool_identity(command[0]), header, sorted(allow))

    def make(folder: Path) -> None:
        file = folder / f"kit{state.platform.suffix}"
        file.write_text(text, encoding="utf-8")
        run = state.platform.compile_command(file, folder / "kit.so", [f"-I{_INCLUDE}", *flags])
        if state.platform.suffix == ".cu":
            run += built.keep_ptx(folder / "ptx")
        code, output = compiler.run(run)
        if code != 0:
            raise BuildError(
                output.replace(str(file), "kit source").replace(f"{folder}/", "").replace(f"{_INCLUDE}/", "").strip()
            )
        built.check(folder / "kit.so", allow)

    with building():
        folder = cache.build("kit", name, make)
    if state.built is not None:
        state.built.append(f"kit library ({', '.join(sorted(functions)) or 'no functions'})")
    return Library(folder / "kit.so", functions, state)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """While a compiler runs, the rank's deadline is the build's."""
    progress = _bound().progress
    former = progress.enter(Phase.building)
    try:
        yield
    finally:
        progress.phase = former
        progress.touch()


def line_directive(source: str, candidate: str) -> str:
    """For the compiler: the source's place in the candidate. Empty if it is not found there."""
    at = candidate.find(source)
    if at < 0:
        return ""
    return f'#line {candidate.count(chr(10), 0, at) + 1} "candidate.py"\n'


_C_TYPES: dict[str, Any] = {
    "void": None, "bool": ctypes.c_bool, "char": ctypes.c_char, "float": ctypes.c_float, "double": ctypes.c_double,
    "int": ctypes.c_int, "unsigned": ctypes.c_uint, "unsigned int": ctypes.c_uint, "short": ctypes.c_short,
    "long": ctypes.c_long, "unsigned long": ctypes.c_ulong, "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong, "signed char": ctypes.c_byte, "unsigned char": ctypes.c_ubyte,
    "unsigned short": ctypes.c_ushort, "long int": ctypes.c_long, "short int": ctypes.c_short,
    "unsigned long int": ctypes.c_ulong, "long long int": ctypes.c_longlong, "cudaError_t": ctypes.c_int,
    "size_t": ctypes.c_size_t, "ssize_t": ctypes.c_ssize_t,
    "ptrdiff_t": ctypes.c_ssize_t, "intptr_t": ctypes.c_ssize_t, "uintptr_t": ctypes.c_size_t,
    **{f"int{b}_t": getattr(ctypes, f"c_int{b}") for b in (8, 16, 32, 64)},
    **{f"uint{b}_t": getattr(ctypes, f"c_uint{b}") for b in (8, 16, 32, 64)},
}  # fmt: skip
_POINTER_TYPES = {"cudaStream_t", "CUstream", "cudaEvent_t"}


@dataclass(frozen=True)
class Function:
    """A C signature as read from the source."""

    name: str
    returns: Any
    parameters: tuple[tuple[str, Any], ...]
    """(text, ctypes type; c_void_p for pointers)."""


def parse_functions(source: str) -> dict[str, Function]:
    """The `extern "C"` functions of a source. Raises KitError for a parameter type that cannot cross."""
    text = _plain(source)
    found: dict[str, Function] = {}
    for match in re.finditer(r'extern\s+"C"\s*', text):
        if text.startswith("{", match.end()):
            region = _at_depth_one(text, match.end())
        else:
            # Up to the body, or up to the end of a mere declaration.
            region = text[match.end() :][: next((m.end() for m in re.finditer("[;{]", text[match.end() :])), 0)]
        pattern = r"(?:^|[;{}]|\n)\s*((?:[A-Za-z_][\w:]*[\s\*&]+)+?)(\w+)\s*\(([^()]*)\)\s*(?:noexcept\s*)?\{"
        for returns, name, parameters in re.findall(pattern, "\n" + region):
            words = set(returns.split())
            if words & {"static", "__global__"} or ("__device__" in words and "__host__" not in words):
                continue
            result = " ".join(w for w in returns.split() if w not in _NOT_A_TYPE)
            found[name] = Function(name, _c_type(result, name), tuple(_parameters(parameters, name)))
    return found


_NOT_A_TYPE = {"inline", "const", "__host__", "__device__", "extern"}
_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def _plain(source: str) -> str:
    """The source without comments, preprocessor lines, attributes and the contents of strings: a brace in any of them
    opens nothing."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0] == '"C"' else "\n" * match[0].count("\n") if match[0][0] == "/" else '""'

    text = _NOISE.sub(blank, source)
    # `#define API extern "C"` is customary.
    for name, meaning in re.findall(r'^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(extern[ \t]+"C".*)', text, re.M):
        text = re.sub(rf"\b{name}\b", meaning.replace("\\", r"\\"), text)
    text = re.sub(r"^[ \t]*#(?:.*\\\n)*.*", "", text, flags=re.M)
    return re.sub(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|\[\[.*?\]\]", " ", text, flags=re.S)


def _at_depth_one(text: str, opening: int) -> str:
    """What stands directly inside the braces at `opening`, bodies of functions emptied."""
    depth, kept = 0, []
    for character in text[opening:]:
        if character == "}":
            depth -= 1
        if depth <= 1:
            kept.append(character)
        if character == "{":
            depth += 1
            if depth == 2:
                kept[-1] = "{"
        if depth == 0:
            break
    return "".join(kept)


def _parameters(text: str, function: str) -> Iterator[tuple[str, Any]]:
    for parameter in filter(None, (p.strip() for p in text.split(","))):
        if parameter == "void":
            continue
        words = re.sub(r"\b(const|__restrict__|__restrict|restrict|volatile)\b", " ", parameter.split("=")[0])
        if "*" in words or "[" in words:
            yield parameter, ctypes.c_void_p
            continue
        parts = words.split()
        if "&" in words:
            parts = [words.strip()]
        # The last word is the parameter's name unless it is itself the type (an unnamed parameter).
        kind = " ".join(parts[:-1]) if len(parts) > 1 and parts[-1] not in _C_TYPES else " ".join(parts)
        yield parameter, _c_type(kind, function)


def _c_type(text: str, function: str) -> Any:
    text = text.removeprefix("std::").strip()
    if "*" in text or text in _POINTER_TYPES:
        return ctypes.c_void_p
    if text not in _C_TYPES:
        raise KitError(
            f'extern "C" function {function}: type {text!r} cannot be passed from Python; use pointers and numbers'
        )
    return _C_TYPES[text]


class Library:
    """A loaded library; each `extern "C"` function is an attribute that checks its arguments."""

    def __init__(self, path: Path, functions: dict[str, Function], state: _State) -> None:
        self._functions, self._state = functions, state
        try:
            self._dll = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"the library does not load: {error}".replace(str(path), "kit library")) from None
        self._last_error = getattr(self._dll, "rs_last_error", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._functions:
            there = ", ".join(sorted(self._functions)) or "none"
            raise AttributeError(f'the library has no extern "C" function {name!r}; it has: {there}')
        signature = self._functions[name]
        try:
            function = getattr(self._dll, name)
        except AttributeError:
            raise KitError(
                f"function {name} is not in the compiled library: is it inline, or removed by the preprocessor?"
            ) from None
        function.restype = signature.returns
        function.argtypes = [kind for _, kind in signature.parameters]
        state, last_error = self._state, self._last_error

        def call(*arguments: Any) -> Any:
            if len(arguments) != len(signature.parameters):
                wanted = ", ".join(text for text, _ in signature.parameters)
                raise TypeError(f"{name}({wanted}) takes {len(signature.parameters)} arguments, not {len(arguments)}")
            if state.tracing:
                state.progress.launch(sys._getframe(1).f_lineno)
            # A tensor becomes its address only where a pointer is wanted: ctypes would cut the address to an int.
            converted = [
                argument.data_ptr() if isinstance(argument, torch.Tensor) and kind is ctypes.c_void_p else argument
                for argument, (_, kind) in zip(arguments, signature.parameters, strict=True)
            ]
            try:
                if state.profiling:
                    with torch.profiler.record_function(f"kit::{name}"):
                        result = function(*converted)
                else:
                    result = function(*converted)
            except ctypes.ArgumentError as error:
                raise TypeError(f"{name}: {_explain(error, signature, arguments)}") from None
            if last_error is not None:
                text = ctypes.create_string_buffer(256)
                if last_error(text, 256):
                    raise RuntimeError(f"{name}: CUDA error: {text.value.decode(errors='replace')}")
            return result

        call.__name__ = name
        self.__dict__[name] = call
        return call


def _explain(error: Exception, signature: Function, arguments: Sequence[Any]) -> str:
    if match := re.search(r"argument (\d+)", str(error)):
        at = int(match[1]) - 1
        return f"argument {at + 1} ({signature.parameters[at][0]}) cannot be made from a {type(arguments[at]).__name__}"
    return str(error)


# ---------------------------------------------------------------------------------------------------------------------
# Symmetric memory


class SymmetricBuffer:
    """A buffer of the same shape on every rank, each mapped by all.

    local: this rank's tensor. peer(r): a tensor view on rank r's. ptrs, signals: int64 tensors (world_size,) on the
    device with the address of every rank's data and of its signal pad (SIGNALS uint32 words, zero at the start).
    """

    def __init__(
        self, memory: SymmetricMemory, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._memory, self._shape, self._dtype = memory, shape, dtype
        offset = SIGNALS * 4
        self.local = self._view(memory.local)
        self.ptrs = torch.tensor([a + offset for a in memory.addresses], dtype=torch.int64, device=device)
        self.signals = torch.tensor(memory.addresses, dtype=torch.int64, device=device)

    def _view(self, memory: torch.Tensor) -> torch.Tensor:
        size = math.prod(self._shape) * self._dtype.itemsize
        return memory[SIGNALS * 4 : SIGNALS * 4 + size].view(self._dtype).view(self._shape)

    def peer(self, rank: int) -> torch.Tensor:
        return self._view(self._memory.peers[rank])

    def barrier(self) -> None:
        """All ranks; device-side on the current stream on cuda."""
        self._memory.barrier()


def symmetric(shape: int | Sequence[int], dtype: torch.dtype) -> SymmetricBuffer:
    """Allocate on every rank and map all. Collective: every rank calls it in the same order with the same shape."""
    state = _bound()
    if state.device is None:
        raise KitError("kit.symmetric needs running ranks; call it inside solution(), not at import")
    if not isinstance(dtype, torch.dtype):
        raise KitError(f"kit.symmetric takes a torch.dtype such as torch.float32, not {dtype!r}")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    state.sequence += 1
    # Round up: vector loads at the tail may read a whole 16-byte word.
    size = SIGNALS * 4 + (math.prod(shape) * dtype.itemsize + 255) // 256 * 256
    return SymmetricBuffer(state.platform.symmetric(size, state.sequence), shape, dtype, state.device)
