from tests.problems.answers.p31 import oracle, wrong

__all__ = ["WRONG", "oracle"]

WRONG = wrong()
