"""`python -m tests.integrity_table FILE...`: docs/integrity.md's table from what `scripts/integrity --out` wrote."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

CATALOGUE = Path(__file__).parent / "evil" / "catalogue.txt"
"""A row of the catalogue a line: its name, the cheat, what stops it."""


def main(files: list[str]) -> None:
    documents = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    platforms = [document["arguments"]["platform"] for document in documents]
    print("| row | cheat | what stops it | " + " | ".join(f"on {p}: candidates, verdicts" for p in platforms) + " |")
    print("| --- | --- | --- |" + " --- |" * len(platforms))
    for line in CATALOGUE.read_text(encoding="utf-8").splitlines():
        row, cheat, defence = line.split(" | ")
        cells = [_verdicts([r for r in _reached(document) if row in r["rows"]]) for document in documents]
        print(f"| {row} | {cheat} | {defence} | " + " | ".join(cells) + " |")


def _reached(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Evaluations of cheats, one after the other or mixed, but for those whose sizes do not fit the number of ranks."""
    rows = [*document["rows"], *(document.get("mixed") or {}).get("rows", [])]
    return [row for row in rows if row["evil"] and row["got"] != "skipped"]


def _verdicts(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    counts = Counter(row["got"] for row in rows)
    names = {row["name"] for row in rows}
    return f"{len(names)}: " + ", ".join(f"{got} {count}" for got, count in counts.most_common())


if __name__ == "__main__":
    main(sys.argv[1:])
