"""Leaves thousands of folders inside each other where its private cache is. Then it returns its own data.

Catalogue: C4
Expected: wrong_values
"""

import os


def solution(tensor):
    os.chdir(os.environ["RINGSMITH_CACHE"])
    for _ in range(2000):
        os.makedirs("folder", exist_ok=True)
        os.chdir("folder")
    os.chdir("/")
    return tensor.clone()
