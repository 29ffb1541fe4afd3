"""Names a command that changes a GPU's clocks: refused from its text alone.

Catalogue: B9
Expected: policy
"""

import subprocess

# Nothing here must ever run, not even the import.
raise SystemExit("the policy gate let this through")

subprocess.run(["sh", "-c", "nvidia-smi -lgc 345"], check=False)


def solution(tensor):
    return tensor
