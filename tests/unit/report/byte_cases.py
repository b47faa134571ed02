"""Sizes at which two ways of writing bytes could disagree: ties, unit borders, signs."""

import random

_BORDERS = [
    1023,
    1024,
    1025,
    1151,
    1152,
    1153,
    1280,
    1408,
    1048064,
    1048570,
    1048575,
    1048576,
]
_TIES = [1024 * k // 8 for k in range(9, 900, 2)] + [
    1024 * 1024 * k // 8 for k in range(9, 900, 2)
]
_TIES += [1024 * k // 4 for k in range(401, 4096, 2)] + [
    2**30 * k // 8 for k in range(9, 99, 2)
]
_random = random.Random(5)

CASES: list[int] = [
    0,
    1,
    999,
    *_BORDERS,
    *_TIES,
    2**40,
    2**50 - 1,
    2**50,
    *(-size for size in _BORDERS),
    *(int(2 ** _random.uniform(0, 52)) for _ in range(3000)),
]
