"""Never gets past its own import.

Catalogue: C4
Expected: timeout
"""

import time

while True:
    time.sleep(0.1)


def solution(tensor):
    return tensor
