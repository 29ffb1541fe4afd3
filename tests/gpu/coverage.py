"""`python -m tests.gpu.coverage FILE...`: how many intervals of references timed as candidates have 1 in them.

FILEs are what `python -m tests.references --timing --out FILE` wrote. An interval that was recorded is a bootstrap's,
widened by the noise of that time (`--recorded`); it is taken back out and put in again as `--noise` has it, so that the
three numbers of `Platform.noise` can be chosen by what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from harness.measure import unseen
from harness.platforms import Noise
from harness.types import Latency


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    for name, default in (("recorded", (0.002, 0.5, 0.0)), ("noise", (0.005, 0.5, 0.005))):
        parser.add_argument(
            f"--{name}", nargs=3, type=float, default=default, metavar=("RELATIVE", "ABSOLUTE_US", "OF_HOST")
        )
    options = parser.parse_args(arguments)
    before, after = (Noise(one[0], one[1], of_host=one[2]) for one in (options.recorded, options.noise))
    for mode in ("eager", "device"):
        rows = [
            (record["problem"], record["case"], timing)
            for file in options.files
            for record in json.loads(file.read_text(encoding="utf-8"))
            if (timing := (record.get("measurement") or {}).get(mode))
        ]
        there = sum(timing["speedup"]["low"] <= 1 <= timing["speedup"]["high"] for _, _, timing in rows)
        outside = [
            (number, case, *again) for number, case, t in rows if not _holds_1(again := _again(t, before, after))
        ]
        print(f"{mode}: {len(rows)} figures, 1 is in {there} intervals as recorded, {len(rows) - len(outside)} so")
        for number, case, low, high in outside:
            print(f"   problem {number}, {case}: [{low:.3f}, {high:.3f}]")


def _again(timing: dict[str, Any], before: Noise, after: Noise) -> tuple[float, float]:
    """The interval with another noise."""
    value, low, high = (timing["speedup"][key] for key in ("value", "low", "high"))
    sides = [Latency.model_validate(timing[key]) for key in ("reference", "candidate")]
    bootstrap = [
        math.sqrt(max(0.0, side**2 - unseen(*sides, before) ** 2)) for side in (value / low - 1, high / value - 1)
    ]
    below, above = (math.hypot(side, unseen(*sides, after)) for side in bootstrap)
    return value / (1 + below), value * (1 + above)


def _holds_1(interval: tuple[float, float]) -> bool:
    return interval[0] <= 1 <= interval[1]


if __name__ == "__main__":
    main()
