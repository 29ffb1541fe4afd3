"""What a caller got wrong, told apart where a protocol has different answers for it."""

from harness.errors import UsageError


class UnknownError(UsageError):
    """There is nothing of that name."""


class ConflictError(UsageError):
    """Not in this state of it: a run that has ended cannot be paused."""
