"""What the one-file page of a long run costs (`python -m tests.runs.page_benchmark [STEPS]`): 500 steps unless given.
Prints seconds and sizes; exits 1 above 10 s or 10 MB."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.runs.long_record import write_long


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        record = write_long(Path(folder), steps=steps)
        out = Path(folder, "page.html")
        began = time.perf_counter()
        command = [sys.executable, "-m", "service.cli", "runs", "export", str(record.path), "--format", "html"]
        subprocess.run([*command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        events = (record.path / "events.jsonl").stat().st_size / 1e6
        sources = sum(file.stat().st_size for file in record.path.glob("candidates/*")) / 1e6
        page, packed = out.stat().st_size / 1e6, len(gzip.compress(out.read_bytes())) / 1e6
    print(
        f"{steps} steps, events {events:.1f} MB, candidates {sources:.1f} MB: {seconds:.1f} s, page {page:.1f} MB "
        f"({packed:.1f} MB packed)"
    )
    sys.exit(seconds > 10 or page > 10)


if __name__ == "__main__":
    main()
