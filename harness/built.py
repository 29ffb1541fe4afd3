"""What a compiler has made is searched before it is loaded.

nvcc is made to keep the PTX of what it compiles: the library holds it compressed or not at all, and machine code does
not tell what it was made from.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import policy


def keep_ptx(folder: Path) -> list[str]:
    """Flags that make nvcc leave its intermediate files, which it writes anyway, in `folder`."""
    folder.mkdir(exist_ok=True)
    return ["--keep", "--keep-dir", str(folder)]


def check(library: Path, allow: frozenset[str]) -> None:
    """Raises PolicyError if a library, or the PTX that was kept beside it, holds something forbidden; see
    `policy.check_object`. Removes what was kept."""
    kept = sorted(library.parent.glob("ptx*/"))
    try:
        policy.check_object(library, [text for folder in kept for text in sorted(folder.glob("*.ptx"))], allow)
    finally:
        for folder in kept:
            shutil.rmtree(folder, ignore_errors=True)
