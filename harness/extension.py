"""torch C++/CUDA extensions for candidates: compiled once for all ranks, under the names that PKB's candidates use.

`install()` puts `utils.cuda_helpers.compile_cuda_extension` into `sys.modules` and replaces
`torch.utils.cpp_extension.load_inline` by a version that caches by content and compiles with fewer headers where that
makes no difference (`torch_build.py`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.utils.cpp_extension as cpp_extension

from harness import built, cache, kit, policy, slim_headers, torch_build
from harness.platforms.cuda import architecture, cuda_home

_torch_load_inline = cpp_extension.load_inline
_torch_run_ninja = cpp_extension._run_ninja_build
_INCLUDE = Path(torch.__file__).parent / "include"
# By content of the build: a second call gives the same module, as torch does.
_loaded: dict[str, Any] = {}


def install() -> None:
    """Call in a process that will import a candidate, before it does."""
    os.environ.setdefault("CUDA_HOME", cuda_home())
    # torch would take the device's plain capability, without `a`: wgmma and setmaxnreg would not assemble.
    number = architecture()
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{number[:-1]}.{number[-1]}" + ("a" if int(number) >= 90 else "")
    cpp_extension.load_inline = load_inline
    helpers = types.ModuleType("utils.cuda_helpers")
    helpers.compile_cuda_extension = compile_cuda_extension  # type: ignore[attr-defined]
    package = types.ModuleType("utils")
    package.__path__ = []
    package.cuda_helpers = helpers  # type: ignore[attr-defined]
    sys.modules["utils"], sys.modules["utils.cuda_helpers"] = package, helpers


def compile_cuda_extension(
    name: str,
    cuda_src: str,
    extra_cuda_cflags: list[str] | None = None,
    extra_include_paths: list[str] | None = None,
    extra_ldflags: list[str] | None = None,
) -> Any:
    """A CUDA source with its own PYBIND11_MODULE, compiled and imported. Raises kit.BuildError."""
    return load_inline(
        name=name,
        cpp_sources="",
        cuda_sources=cuda_src,
        extra_cuda_cflags=extra_cuda_cflags or ["-O3"],
        extra_include_paths=extra_include_paths or [],
        extra_ldflags=list(extra_ldflags or []),
        with_cuda=True,
    )


def load_inline(*args: Any, **kwargs: Any) -> Any:
    """As torch's, built in a folder named by content. Raises kit.BuildError with the compiler's output, and
    policy.PolicyError if what it made holds something that this host forbids."""
    given = inspect.signature(_torch_load_inline).bind(*args, **kwargs).arguments
    # use_pch would write into torch's own folder; the rest says where and how loudly to build.
    given = {k: v for k, v in given.items() if k not in ("verbose", "build_directory", "use_pch")}
    # torch changes the lists that it is given.
    given = {k: list(v) if isinstance(v, list | tuple) else v for k, v in given.items()}
    state = kit._bound()
    for kind, suffix in (("cpp_sources", "C++"), ("cuda_sources", "CUDA")):
        if sources := given.get(kind):
            # The position in the candidate is part of the content: messages and -lineinfo carry its lines.
            texts = [sources] if isinstance(sources, str) else sources
            given[kind] = [_with_lines(text, state.source, f"{suffix} source", i) for i, text in enumerate(texts)]
    if given.get("functions") is not None:
        given["cpp_sources"] = [*(given.get("cpp_sources") or []), '#line 1 "bindings"']
    identity = _identity(given)
    content = cache.key(identity, sorted(given.items()))

    name = given["name"]

    def make(folder: Path) -> None:
        _compile(folder, given, identity, slim=True)
        try:
            _loaded[content] = _load(name, folder / f"{name}.so", is_module)
        except kit.BuildError as error:
            # An inline function of torch, declared in one header and defined in one that was left out, shows only here.
            if re.search(r"undefined symbol: _ZNK?(?:2at|3c10|5torch|8pybind11)", str(error)):
                _compile(folder, given, identity, slim=False)

    is_module = given.get("is_python_module", True)
    with kit.building():
        folder = cache.build("extension", content, make)
    if state.built is not None:
        state.built.append(f"extension {name}")
    path = folder / f"{name}.so"
    if content not in _loaded:
        _loaded[content] = _load(name, path, is_module)
    return _loaded[content] if is_module else str(path)


def _compile(folder: Path, given: dict[str, Any], identity: str, *, slim: bool) -> None:
    """`<name>.so` in `folder`."""
    name = given["name"]
    # Else a second source of that name would be called `<name>_v1`.
    cpp_extension.JIT_EXTENSION_VERSIONER.entries.pop(name, None)
    try:
        _lay_out(folder, given)
    except OSError:
        raise
    except Exception as error:  # arguments that torch refuses
        raise kit.BuildError(str(error).replace(str(folder), "")) from None
    try:
        torch_build.build(folder, _INCLUDE, identity, slim=slim)
    except torch_build.CompileFailedError as error:
        raise kit.BuildError(_readable(str(error), folder)) from None
    built.check(folder / f"{name}.so", policy.allowed())


class _LaidOutError(Exception):
    """Leaves torch's builder at the point where it would compile."""


def _lay_out(folder: Path, given: dict[str, Any]) -> None:
    """Sources and build.ninja, as torch writes them."""

    def stop(*_: Any, **__: Any) -> None:
        raise _LaidOutError

    own = {k: list(v) if isinstance(v, list) else v for k, v in given.items()}
    cpp_extension._run_ninja_build = stop
    try:
        _torch_load_inline(**own, build_directory=str(folder), verbose=False)
    except _LaidOutError:
        pass
    finally:
        cpp_extension._run_ninja_build = _torch_run_ninja


def _load(name: str, path: Path, is_module: bool) -> Any:
    """The module; None for a library without one. Raises kit.BuildError."""
    try:
        if not is_module:
            torch.ops.load_library(path)
            return None
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # the suffix is known
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except (ImportError, OSError) as error:
        raise kit.BuildError(f"the extension does not load: {error}".replace(f"{path.parent}/", "")) from None


def _with_lines(source: str, candidate: str, kind: str, index: int) -> str:
    name = f"{kind} {index + 1}" if index else kind
    return (kit.line_directive(source, candidate) or f'#line 1 "{name}"\n') + source


# What else compilers read. TORCH_CUDA_ARCH_LIST is set above.
_VARIABLES = (
    "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CXX", "CC", "PYTORCH_NVCC", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
    "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
)  # fmt: skip


def _identity(given: dict[str, Any]) -> str:
    """What decides a build besides its arguments: compilers, torch, headers, environment."""
    names = [
        os.environ.get("CXX", "c++"),
        os.environ.get("PYTORCH_NVCC") or str(Path(os.environ["CUDA_HOME"], "bin/nvcc")),
    ]
    tools = [cache.tool_identity(path) for path in map(shutil.which, names) if path is not None]
    folders = [_files(Path(path)) for path in given.get("extra_include_paths") or []]
    variables = [os.environ.get(variable) for variable in _VARIABLES]
    return cache.key(
        tools,
        folders,
        variables,
        torch.__version__,
        str(_INCLUDE),
        sys.implementation.cache_tag,
        slim_headers.identity(),
        sorted(policy.allowed()),
    )


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times in a folder of headers."""
    found: list[tuple[str, int, int]] = []
    for root, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            with contextlib.suppress(OSError):
                stat = os.stat(os.path.join(root, file))
                found.append((os.path.join(root, file), stat.st_size, stat.st_mtime_ns))
        if len(found) > 20000:
            break  # not a folder of headers
    return found


def _readable(output: str, folder: Path) -> str:
    """Errors without warnings, notes and machine-specific paths."""
    text = output.replace(f"{folder}/", "").replace(f"{_INCLUDE}/", "").replace("torch/csrc/api/include/", "")
    text = re.sub(r"(?<![\w.])/\S*?/(?:include|targets/[\w-]+/include|lib/gcc/\S+?/include)/", "", text)
    text = re.sub(r"/tmp/tmpxft_\w+-\d+_", "", text)
    kept, showing = [], True
    for line in text.splitlines():
        if match := re.match(
            r"\S.*?[:)]: (?:(fatal error|error)|warning|remark|note)\b|(In file included from|ninja:)", line
        ):
            showing = match[1] is not None
        elif not line.strip():
            showing = True
        if showing and line.strip():
            kept.append(line)
    return "\n".join(kept[:_SHOWN]) + (f"\n... {len(kept) - _SHOWN} more lines" if len(kept) > _SHOWN else "")


_SHOWN = 80
