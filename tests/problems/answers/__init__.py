"""What is right and what is tempting, problem by problem: `pNN.py` has

- `oracle(ranks)`: all ranks' arguments in (float64), every rank's answer out, from a global view and not by the
  reference's own steps. An answer is the output; with `updates`, (output, tuple of what those arguments then hold);
- `WRONG`: name -> function like `oracle`, in the run's dtype, of an answer that somebody might try and that must fail.

and, where needed, each with its reason:

- `TRIAL`: sizes at which answers are judged on a CPU; the default case's with none above 128 unless given;
- `WORLD_SIZES`: where `tiny` and `odd` can run, if not everywhere from 2 to 8;
- `NEEDLESS`: name of a general wrong answer -> why it is none here;
- `LOSSY`: why cheaper formats on the wire cannot be told from rounding here;
- `FIXED`: position of an argument -> why its tensors may be the same in every trial;
- `NONFINITE`: position of an argument -> why its tensors hold NaN or infinity;
- `RTOL`: how far reference and oracle may be apart in float64, relative to the largest element.
"""

import importlib
from types import ModuleType


def of(number: int) -> ModuleType:
    return importlib.import_module(f"tests.problems.answers.p{number:02d}")
