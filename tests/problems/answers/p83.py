from tests.problems.answers import p82

oracle, WRONG = p82.oracle, p82.WRONG
TRIAL = {"batch": 2, "tokens_per_rank": 512, "vocabulary_per_rank": 96, "chunk_per_rank": 200}
