"""Never gets past its own import.

Expected: timeout
"""

import time

while True:
    time.sleep(0.1)


def solution(tensor):
    return tensor
