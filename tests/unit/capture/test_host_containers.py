"""Containers that get data of the host in each step are found, with how much and by which line."""

from __future__ import annotations

import ctypes
import inspect
from collections import deque
from pathlib import Path

import numpy as np

from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.capture.watch.holders.live_holders import (
    count_host_bytes,
    count_host_containers,
    find_grown_containers,
)

ROW = np.zeros(4096, np.float32)
kept: list[tuple[int, np.ndarray]] = []
bounded: deque[np.ndarray] = deque(maxlen=100)
whole: list[np.ndarray] = [ROW] * 500  # a data set: it was there before


def step(number: int) -> None:
    kept.append((number, ROW.copy()))  # grows
    bounded.append(ROW.copy())


def test_what_grows_with_each_step_is_told_and_nothing_else() -> None:
    step(0)
    before = count_host_containers()
    for number in range(5):
        step(number)
    found = find_grown_containers(before, 5, HolderSearch(inspect.currentframe()))
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "# grows" in text)
    (row,) = [one for one in found if Path(__file__).name in one.where]
    assert (row.holder, row.count) == ("the global list `kept`", 5)
    assert row.where.endswith(f":{line}")
    assert row.size_bytes == 5 * ROW.nbytes


def test_a_list_that_c_is_just_filling_is_no_danger() -> None:
    make = ctypes.pythonapi.PyList_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_ssize_t,)
    empty = make(3)  # its places hold nothing, not even None
    before = count_host_containers()
    assert find_grown_containers(before, 1, HolderSearch(None)) == ()
    assert len(empty) == 3
    empty.clear()


def test_bytes_of_what_an_entry_is_made_of() -> None:
    assert count_host_bytes((ROW, {"a": [ROW, 1, None]})) == 2 * ROW.nbytes
    assert count_host_bytes(object()) == 0
    assert count_host_bytes(bytes(5000)) >= 5000
