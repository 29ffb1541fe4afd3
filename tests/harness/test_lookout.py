"""What a candidate's own code looks at is noticed, what libraries look at is not. Each in a process of its own: a hook
cannot be unhooked."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = """
import importlib.util, sys
from pathlib import Path
from harness.lookout import Lookout
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder / "lib"))
lookout = Lookout()
lookout.begin(folder / "candidate.py")
spec = importlib.util.spec_from_file_location("candidate", folder / "candidate.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(*lookout.seen(), sep="; ")
"""


def seen(tmp_path: Path, source: str) -> str:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "library.py").write_text("import sys\ndef caller():\n    return sys._getframe(1).f_lineno\n")
    (tmp_path / "candidate.py").write_text(source)
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import sys\nsys._getframe(1)\n", "sys._getframe in line 2"),
        ("import inspect\ninspect.stack()\n", "sys._getframe in line 2"),
        ("import gc\n\ngc.get_objects()\n", "gc.get_objects in line 3"),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    error.__traceback__.tb_frame\n",
            "tb_frame in line 4",
        ),
        ("exec('import sys; sys._getframe()')\n", "sys._getframe in line 1"),
        ("import ctypes\nctypes.pythonapi.PyEval_GetFrame\n", "PyEval_GetFrame in line 2"),
    ],
)
def test_looking_is_noticed(source, found, tmp_path):
    assert seen(tmp_path, source) == found


def test_what_libraries_do_wherever_they_lie_is_not(tmp_path):
    # typing_extensions looks at frames for Triton, and may lie in any folder.
    source = """
import collections, logging, traceback, typing, warnings
import library
library.caller()
collections.namedtuple("A", "x y")
class B(typing.NamedTuple):
    x: int
logging.warning("w")
warnings.warn("w")
try:
    1 / 0
except ZeroDivisionError:
    traceback.format_exc()
"""
    assert seen(tmp_path, source) == ""
