"""Trap: writes files in its temporary folder. Right, because that folder is its own; it keeps a note of sizes there, no
results.
"""

import json
import tempfile
from pathlib import Path

import torch.distributed as dist

NOTES = Path(tempfile.gettempdir()) / "notes"


def solution(tensor):
    note = NOTES / f"{dist.get_rank()}.json"
    if not note.exists():
        NOTES.mkdir(exist_ok=True)
        note.write_text(json.dumps({"shape": list(tensor.shape)}))
    assert json.loads(note.read_text())["shape"] == list(tensor.shape)
    out = tensor.clone()
    dist.all_reduce(out)
    return out
