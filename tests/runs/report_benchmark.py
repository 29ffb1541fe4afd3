"""What a report of many large records costs (`python -m tests.runs.report_benchmark [RUNS [MB]]`): 500 of 2.6 MB
unless given. Prints seconds and the memory that the command came to; exits 1 above 10 s or 500 MB."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.runs.record_sets import write_set

MODELS, SAMPLES, STEPS = ("maker/large", "maker/small"), 3, 20


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    megabytes = float(sys.argv[2]) if len(sys.argv) > 2 else 2.6
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        # Two more runs end by a fault.
        problems = range(1, 1 + max(1, (runs - len(MODELS)) // (len(MODELS) * SAMPLES)))
        write_set(
            root, models=MODELS, problems=problems, samples=SAMPLES, steps=STEPS, text_bytes=int(megabytes * 3500)
        )
        files = list(root.glob("*/events.jsonl"))
        size = sum(file.stat().st_size for file in files) / 1e6
        began = time.perf_counter()
        command = [sys.executable, "-m", "service.cli", "report", str(root), "--out", f"{folder}/report.html"]
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - began
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
        page = Path(folder, "report.html").stat().st_size / 1e6
    print(f"{len(files)} records, {size:.0f} MB: {seconds:.1f} s, {memory:.0f} MB; page {page:.1f} MB")
    sys.exit(seconds > 10 or memory > 500)


if __name__ == "__main__":
    main()
