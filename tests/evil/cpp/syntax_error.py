"""Python that does not compile. (A missing colon would do too, but no linter could read this folder then.)

Expected: compile_error
"""


def solution(tensor):
    return tensor


return solution  # noqa: F706
