from tests.problems.answers.p31 import dealt, oracle, wrong

__all__ = ["WRONG", "oracle"]

WRONG = wrong() | {"experts dealt to ranks in turn": dealt}
