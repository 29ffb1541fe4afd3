"""Failures that are not the candidate's.

    RingsmithError
    ├── UsageError      the user asked for something that cannot be (exit code 2)
    ├── HarnessError    ours or the machine's; never a verdict, never charged to the candidate (exit code 3)
    │   └── SandboxError    processes of the sandbox failed; fresh ones may do better, so the sandbox tries once more
    └── BudgetEndedError    what a call may use is used up: nobody's fault, and no verdict

`problems.spec.ProblemError` is a usage error too; it lives below this package. What a *candidate* does wrong is data:
a `harness.types.Verdict`.
"""


class RingsmithError(Exception):
    """Base of every failure that is reported to a person as one line."""


class UsageError(RingsmithError):
    """The request is impossible on any machine or on this one: wrong name, more GPUs than there are."""


class HarnessError(RingsmithError):
    """The harness or the machine failed; nothing is known about the candidate."""


class SandboxError(HarnessError):
    """A fork server, a reference rank or a start-up failed: worth one retry on fresh processes."""


class BusyError(SandboxError):
    """The machine has too much other work for times to mean anything. `gone_with_candidate`: not any more when the
    candidate's processes had ended, which may be chance, or its doing."""

    def __init__(self, *, gone_with_candidate: bool = False) -> None:
        super().__init__("this machine is too busy with other work for times to mean anything")
        self.gone_with_candidate = gone_with_candidate


class BudgetEndedError(RingsmithError):
    """A limit was reached while the harness was at work, which has been ended; nothing is known about the candidate.
    What was used is in the call's `harness.allowance.Allowance`."""

    def __init__(self, limit: str) -> None:
        """`limit` is its name: `wall_s`, `device_s`, `sweep usd`."""
        super().__init__(f"the budget ended ({limit})")
        self.limit = limit
