"""Loops by itself: busy for ever, waits for nobody.

Catalogue: C4
Expected: timeout
"""


def solution(tensor):
    n = 0
    while True:
        n += 1
