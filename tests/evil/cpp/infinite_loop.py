"""Loops by itself: busy for ever, waits for nobody.

Expected: timeout
"""


def solution(tensor):
    n = 0
    while True:
        n += 1
