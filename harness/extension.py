"""torch C++/CUDA extensions for candidates: compiled once for all ranks, under the names that PKB's candidates use.

`install()` puts `utils.cuda_helpers.compile_cuda_extension` into `sys.modules` and replaces
`torch.utils.cpp_extension.load_inline` by a version that caches by content.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.utils.cpp_extension as cpp_extension

from harness import cache, kit
from harness.platforms.cuda import architecture, cuda_home

_torch_load_inline = cpp_extension.load_inline


def install() -> None:
    """Call in a process that will import a candidate, before it does."""
    os.environ.setdefault("CUDA_HOME", cuda_home())
    # torch would take the device's plain capability, without `a`: wgmma and setmaxnreg would not assemble.
    number = architecture()
    os.environ["TORCH_CUDA_ARCH_LIST"] = f"{number[:-1]}.{number[-1]}" + ("a" if int(number) >= 90 else "")
    os.environ.setdefault("MAX_JOBS", "4")
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


def load_inline(name: str, *args: Any, **kwargs: Any) -> Any:
    """As torch's, built in a folder named by content. Raises kit.BuildError with the compiler's output."""
    kwargs.pop("verbose", None)
    kwargs.pop("build_directory", None)
    arguments = {k: list(v) if isinstance(v, list) else v for k, v in sorted(kwargs.items())}
    content = cache.key(name, args, arguments, torch.__version__, os.environ["TORCH_CUDA_ARCH_LIST"])
    # torch mutates the lists that it is given (extra_ldflags); copies keep the caller's key stable.
    own: dict[str, Any] = {k: list(v) if isinstance(v, list) else v for k, v in kwargs.items()}

    def make(folder: Path) -> None:
        try:
            _torch_load_inline(name, *args, **(own | {"build_directory": str(folder), "verbose": False}))
        except OSError:
            raise
        except Exception as error:
            raise kit.BuildError(_compiler_output(str(error)).replace(str(folder), "")) from None

    with kit.building():
        folder = cache.build("extension", content, make)
    if (built := kit._bound().built) is not None:
        built.append(f"extension {name}")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.so")
    if spec is None or spec.loader is None:
        raise kit.BuildError(f"the extension {name} has no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compiler_output(text: str) -> str:
    """torch's message without the command lines that ninja echoes."""
    lines = text.splitlines()
    kept = [line for line in lines if not re.match(r"\[\d+/\d+\] |ninja: |FAILED: |/.*(nvcc|c\+\+|g\+\+) ", line)]
    return "\n".join(kept).strip()
