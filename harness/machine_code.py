"""What the machine code of a candidate's kernels shows, as the CUDA toolkit's disassembler prints it. No torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness import proc
from harness.platforms.cuda import cuda_home
from harness.profile_types import KernelCode
from harness.timeline import base_name

_DISASSEMBLE_S = 20.0
"""For all files together."""
_MAX_FILES = 32
_MAX_BYTES = 16 << 20
_MEMORY_BYTES = 8 << 30
_MAX_FENCES = 16
"""Of a kernel, looked for in loops."""

_FUNCTION = re.compile(r"^\s*Function : (\S+)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)([^;]*);")
_LABEL = re.compile(r"^\s*(\.L\w+):")
_GLOBAL = re.compile(r"(LDG|LDGSTS|LD|STG|ST)(\.|$)")
_SIGNAL = re.compile(r"(LDG|LD|STG|ST|ATOMG|ATOM|REDG|RED)\..*STRONG\.SYS")
_FENCE = re.compile(r"MEMBAR\.\w+\.SYS")
_BULK = re.compile(r"(UBLKCP|UBLKRED|UTMASTG|UTMALDG|UTMAREDG)")
_TENSOR = re.compile(r"(H|Q|I|B|D)G?MMA|UTC\w*MMA")
_TARGET = re.compile(r"(?:0x([0-9a-f]+)|`\((\.L\w+)\))\s*$")


class NoDisassemblerError(Exception):
    """The message says what is missing."""


def disassembler() -> str:
    """Path of cuobjdump. Raises NoDisassemblerError."""
    installed = [str(p) for folder in sys.path for p in sorted(Path(folder).glob("nvidia/cu*/bin"))]
    paths = os.pathsep.join([os.environ.get("PATH", ""), f"{cuda_home()}/bin", "/usr/local/cuda/bin", *installed])
    found = shutil.which("cuobjdump", path=paths)
    if found is None:
        raise NoDisassemblerError("the CUDA toolkit here has no cuobjdump: the machine code was not looked at")
    return found


def kernels(folder: Path) -> dict[str, KernelCode]:
    """Of everything compiled below `folder`, a cache of one candidate, by `timeline.base_name`. Instances of one
    template count as one kernel, of most instructions of each sort. Raises NoDisassemblerError."""
    tool = disassembler()
    found: dict[str, KernelCode] = {}
    try:
        files = [p for suffix in ("*.so", "*.cubin") for p in sorted(folder.rglob(suffix)) if p.is_file()]
    except (OSError, RecursionError):  # folders in folders, until no path leads there: not a compiler's
        return {}
    deadline = time.monotonic() + _DISASSEMBLE_S
    for path in files[:_MAX_FILES]:
        for code in _of_file(tool, path, deadline - time.monotonic()):
            name = base_name(code.name)
            found[name] = _merged(found[name], code) if name in found else code
    return found


def _of_file(tool: str, path: Path, timeout_s: float) -> list[KernelCode]:
    try:
        if timeout_s <= 0 or path.stat().st_size > _MAX_BYTES:
            return []
        # Opened here: whoever the tool runs as needs no way to the file.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            run = subprocess.run(
                proc.reader([tool, "-sass", "/dev/stdin"], _MEMORY_BYTES), stdin=file, capture_output=True, text=True,
                errors="replace", timeout=timeout_s, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse(run.stdout)


@dataclass
class _Listing:
    name: str
    lines: list[_Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """Where each points to: some versions print labels, others addresses."""

    def successors(self) -> dict[int, list[int]]:
        """By address, where an instruction can be followed by which. Calls return."""
        found: dict[int, list[int]] = {}
        for line, after in zip(self.lines, [*self.lines[1:], None], strict=True):
            follow = [after.address] if after else []
            if line.name.startswith(("BRA", "JMP")) and (target := _TARGET.search(line.operands)):
                # Predicates are written in front, or (those of a whole warp) as the first operand.
                if not line.predicated and "," not in line.operands:
                    follow = []
                to = self.labels.get(target[2]) if target[2] else int(target[1], 16)
                follow += [] if to is None else [to]
            elif line.name.startswith(("EXIT", "RET")) and not line.predicated:
                follow = []
            found[line.address] = follow
        return found


@dataclass(frozen=True)
class _Line:
    address: int
    predicated: bool
    name: str
    operands: str


def parse(sass: str) -> list[KernelCode]:
    """From the text of `cuobjdump -sass`."""
    listings: list[_Listing] = []
    waiting: list[str] = []
    for line in sass.splitlines():
        if named := _FUNCTION.match(line):
            listings.append(_Listing(named[1]))
        elif listings and (match := _INSTRUCTION.match(line)):
            address = int(match[1], 16)
            listings[-1].lines.append(_Line(address, match[2] is not None, match[3], match[4]))
            listings[-1].labels.update(dict.fromkeys(waiting, address))
            waiting = []
        elif label := _LABEL.match(line):
            waiting.append(label[1])
    return [_code(listing) for listing in listings]


def _code(listing: _Listing) -> KernelCode:
    fences: list[int] = []
    loads: dict[int, int] = {}
    stores: dict[int, int] = {}
    counts = dict.fromkeys(("spills", "fences", "in_loops", "signals", "bulk", "tensor", "multicast"), 0)
    for line in listing.lines:
        name = line.name
        # What is strong and narrow is a flag; a wide one is data, or both.
        if _GLOBAL.match(name) and (".STRONG" not in name or _width(name) >= 16):
            widths = loads if name.startswith("LD") else stores
            widths[_width(name)] = widths.get(_width(name), 0) + 1
        if name.startswith(("LDL", "STL")):
            counts["spills"] += 1
        elif _FENCE.match(name):
            fences.append(line.address)
        elif _BULK.match(name):
            counts["bulk"] += 1
        elif name.startswith("LDGMC"):
            counts["multicast"] += 1
        elif _TENSOR.match(name):
            counts["tensor"] += 1
        counts["signals"] += bool(_SIGNAL.match(name))
    follow = listing.successors() if fences else {}
    counts["fences"] = len(fences)
    counts["in_loops"] = sum(_repeats(at, follow) for at in fences[:_MAX_FENCES])
    return KernelCode(
        name=listing.name, loads=loads, stores=stores, spills=counts["spills"], system_fences=counts["fences"],
        system_fences_in_loops=counts["in_loops"], signals=counts["signals"], bulk_copies=counts["bulk"],
        tensor=counts["tensor"], multicast=counts["multicast"],
    )  # fmt: skip


def _repeats(address: int, follow: dict[int, list[int]]) -> bool:
    """Whether the instruction there can be run again. Not by a look at backward branches: rare paths, which compilers
    put behind a kernel's end, jump back as well."""
    seen, coming = set(), list(follow.get(address, ()))
    while coming:
        here = coming.pop()
        if here == address:
            return True
        if here not in seen:
            seen.add(here)
            coming += follow.get(here, ())
    return False


def _width(name: str) -> int:
    """Bytes that one thread moves."""
    for part, size in ((".256", 32), (".128", 16), (".64", 8), (".U8", 1), (".S8", 1), (".U16", 2), (".S16", 2)):
        if part in name:
            return size
    return 4


def _merged(a: KernelCode, b: KernelCode) -> KernelCode:
    def most(x: dict[int, int], y: dict[int, int]) -> dict[int, int]:
        return {width: max(x.get(width, 0), y.get(width, 0)) for width in sorted(x | y)}

    numbers = ("spills", "system_fences", "system_fences_in_loops", "signals", "bulk_copies", "tensor", "multicast")
    changed = {name: max(getattr(a, name), getattr(b, name)) for name in numbers}
    return a.model_copy(update={**changed, "loads": most(a.loads, b.loads), "stores": most(a.stores, b.stores)})
