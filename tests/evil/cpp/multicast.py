"""Names a function of NVLink multicast: refused from its text alone, before anything of it runs.

Catalogue: D12
Expected: policy
"""

# Nothing here must ever run, not even the import.
raise SystemExit("the policy gate let this through")

FORBIDDEN = "cuMulticastCreate"


def solution(tensor):
    return tensor
