"""Whole numbers as polynomials in one size: the closed form of an axis, a constant, a buffer's bytes.

An axis of a tensor is affine in the batch wherever the batch is an axis of what the step is fed, and its
bytes are a product of axes. The form is the polynomial of the lowest degree through the points that are
known; whether it holds elsewhere is for a further point to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]


class NoForm(ValueError):  # noqa: N818 - reads as what happened
    """A form gives no whole number of 0 or more at a size."""


@dataclass(frozen=True, slots=True)
class Form:
    """A polynomial.

    Attributes:
        coefficients: From the constant one up; the last is not 0 unless it is the only one.
    """

    coefficients: tuple[Fraction, ...]

    def at(self, size: int) -> int:
        """Return the value at a size.

        Raises:
            NoForm: it is no whole number.
        """
        value = Fraction(0)
        for coefficient in reversed(self.coefficients):
            value = value * size + coefficient
        if value.denominator != 1:
            raise NoForm(f"{float(value)} at {size}")
        return int(value)


def through(points: Sequence[tuple[int, int]]) -> Form:
    """Return the polynomial of the lowest degree through points.

    Args:
        points: (size, value), at sizes that differ.
    """
    sizes = [size for size, _ in points]
    # Newton's divided differences: the first of each column.
    column = [Fraction(value) for _, value in points]
    differences = [column[0]]
    for reach in range(1, len(points)):
        column = [
            (after - before) / (sizes[at + reach] - sizes[at])
            for at, (before, after) in enumerate(zip(column, column[1:], strict=False))
        ]
        differences.append(column[0])
    coefficients = [Fraction(0)] * len(points)
    for at in reversed(range(len(points))):  # Horner: c = c * (n - size) + difference
        shifted = [Fraction(0), *coefficients[:-1]]
        coefficients = [
            up - sizes[at] * same for up, same in zip(shifted, coefficients, strict=True)
        ]
        coefficients[0] += differences[at]
    while len(coefficients) > 1 and not coefficients[-1]:
        coefficients.pop()
    return Form(tuple(coefficients))


@dataclass(frozen=True, slots=True)
class FormTable:
    """Many forms of one argument as a table, by Newton's divided differences.

    Attributes:
        sizes: Where values are known.
        differences: Shape ``(len(sizes), n)``: the value at the first size, and what each further size
            adds to the form through those before it.
    """

    sizes: tuple[int, ...]
    differences: NDArray[np.float64]

    @classmethod
    def through(cls, sizes: Sequence[int], values: Sequence[Table]) -> FormTable:
        """Return the polynomials through rows of values at sizes that differ."""
        column = [np.asarray(row, np.float64) for row in values]
        differences = [column[0]]
        for reach in range(1, len(values)):
            column = [
                (after - before) / (sizes[at + reach] - sizes[at])
                for at, (before, after) in enumerate(zip(column, column[1:], strict=False))
            ]
            differences.append(column[0])
        return cls(tuple(sizes[: len(values)]), np.stack(differences))

    def at(self, size: int) -> Table:
        """Return the values at a size, rounded to whole numbers; none under 0."""
        value = self.differences[-1]
        for known, difference in zip(self.sizes[-2::-1], self.differences[-2::-1], strict=True):
            value = difference + (size - known) * value
        return np.asarray(np.maximum(np.rint(value), 0), np.int64)
