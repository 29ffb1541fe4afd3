"""Broken CUDA sources with what nvcc really says of them: `tests/harness/logs/nvcc.txt`.

`python -m tests.compiler_logs` compiles every source of that file again and writes what came out, folders left out.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from harness import platforms

NVCC = Path(__file__).parent / "harness" / "logs" / "nvcc.txt"
FIRST_LINE = 11
"""Line of the candidate that a source's first line stands in."""


@dataclass(frozen=True)
class Recorded:
    name: str
    arch: str
    source: str
    log: str

    @property
    def candidate(self) -> str:
        """A candidate with this source in its place."""
        return "#\n" * (FIRST_LINE - 1) + self.source + '"""  # end of SOURCE = r"""\n'


def read(path: Path = NVCC) -> dict[str, Recorded]:
    """Sections `=== name [arch]`, the source, `---`, the compiler's output."""
    found = {}
    for section in re.split(r"^=== ", path.read_text(), flags=re.M)[1:]:
        head, _, rest = section.partition("\n")
        source, _, log = rest.partition("---\n")
        name, _, arch = head.partition(" ")
        found[name] = Recorded(name, arch or "90a", source, log)
    return found


def compile_cuda(recorded: Recorded) -> str:
    """nvcc's output, run as kit runs it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kit.cu")
        file.write_text(f'#line {FIRST_LINE} "candidate.py"\n{recorded.source}')
        include = Path(__file__).parent.parent / "harness" / "include"
        command = platforms.get("cuda").compile_command(file, Path(folder, "kit.so"), [f"-I{include}"])
        command[command.index("-gencode") + 1] = f"arch=compute_{recorded.arch},code=sm_{recorded.arch}"
        done = subprocess.run(command, capture_output=True, text=True)
    output = (done.stderr + done.stdout).replace(str(file), "kit source")
    return re.sub(r"(?<![\w./])/(?:[^\s/]+/)+", "", re.sub(r"/\S+-\d+_kit", "/kit", output)).strip() + "\n"


def main() -> None:
    if shutil.which("nvcc") is None:
        raise SystemExit("nvcc is missing")
    sections = [replace(one, log=compile_cuda(one)) for one in read().values()]
    heads = [f"=== {one.name}{'' if one.arch == '90a' else ' ' + one.arch}\n" for one in sections]
    NVCC.write_text("".join(f"{head}{one.source}---\n{one.log}" for head, one in zip(heads, sections, strict=True)))


if __name__ == "__main__":
    main()
