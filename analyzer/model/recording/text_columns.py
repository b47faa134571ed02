"""Columns of texts that repeat: each text is held once, a row is its number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


class TextNumbers:
    """Numbers texts from 0 on, each once."""

    def __init__(self, *first: str) -> None:
        """Begin with the texts ``first``."""
        self._numbers = {text: number for number, text in enumerate(first)}

    def of(self, text: str) -> int:
        """Return the number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> list[str]:
        """The texts, in the order of their numbers."""
        return list(self._numbers)


class TextColumn:
    """A text for each row; read and written like a list."""

    def __init__(self, count: int, text: str = "") -> None:
        """Begin with ``count`` times the same text."""
        self._known = TextNumbers(text)
        self._texts = [text]
        self._numbers = np.zeros(count, np.int32)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, row: int) -> str:
        return self._texts[int(self._numbers[row])]

    def __setitem__(self, row: int, text: str) -> None:
        self._numbers[row] = self._of(text)

    def fill(self, rows: npt.NDArray[np.bool_], text: str) -> None:
        """Write a text into the rows of a mask, shape ``(n,)``."""
        self._numbers[rows] = self._of(text)

    def equal(self, text: str) -> npt.NDArray[np.bool_]:
        """Return which rows hold a text, shape ``(n,)``."""
        return np.asarray(self._numbers == self._of(text))

    def category(self) -> pd.Categorical:
        """Return the column for a table."""
        return text_category(self._numbers, self._texts)

    def _of(self, text: str) -> int:
        number = self._known.of(text)
        if number == len(self._texts):
            self._texts.append(text)
        return number


def text_category(numbers: npt.NDArray[Any], texts: list[str]) -> pd.Categorical:
    """Return texts by their numbers as a column whose categories are those that occur, sorted.

    Args:
        numbers: The number of each row's text, shape ``(n,)``.
        texts: The texts; two of them may be equal.
    """
    seen = np.flatnonzero(np.bincount(numbers, minlength=len(texts))).tolist()
    categories = sorted({texts[number] for number in seen})
    place = {text: at for at, text in enumerate(categories)}
    codes = np.full(len(texts), -1, np.min_scalar_type(-max(len(categories), 1)))
    codes[seen] = [place[texts[number]] for number in seen]
    return pd.Categorical.from_codes(codes[numbers], categories)
