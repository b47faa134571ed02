"""What ``analyze fit`` varies: the batch, or axes of the inputs that are written with an N."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from analyzer.capture.targets.target_spec import parse_shapes
from analyzer.fitting.scaling.fit_answer import AXIS_OF_N, shape_at
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError, TargetError

_FIRST: Final = 128
"""Length of the longest varied axis where the search begins: all of ``keras.applications`` take it."""


@dataclass(frozen=True, slots=True)
class VariedSize:
    """What a size is of.

    Attributes:
        shapes: Axes of inputs as written, each with an N in it: ``tokens=N``, ``32N,32N,3``. Empty where
            the size is that of the batch.
    """

    shapes: tuple[str, ...] = field(default=())

    @property
    def template(self) -> str:
        """The shapes as one text, empty for the batch."""
        return " ".join(self.shapes)

    @property
    def degree(self) -> int:
        """Of an axis, where all sides of one input may be flattened into one; 1 of the batch."""
        return max([1, *(len(_axes_of(shape)) for shape in self.shapes)])

    @property
    def power(self) -> int:
        """With which power of the size the need grows, at a guess.

        An image of two sides is of the second. So is a sequence that is held against itself; one that is
        not is of the first, for which the guess is too low and the next one right.
        """
        return max(2, self.degree) if self.shapes else 1

    def at(self, options: CaptureOptions, size: int) -> CaptureOptions:
        """Return how the step is made at a size.

        Args:
            options: How it is made at any.
            size: The batch, or N.
        """
        if not self.shapes:
            return replace(options, batch_size=size)
        shapes = parse_shapes([shape_at(shape, size) for shape in self.shapes])
        return replace(options, shapes={**options.shapes, **shapes})

    def first(self, options: CaptureOptions) -> int:
        """Return the size that a search begins with."""
        if not self.shapes:
            return options.open_batch_size
        axes = [
            axes for shape in self.shapes for axes in AXIS_OF_N.findall(shape.rpartition("=")[2])
        ]
        return max(_FIRST // max(int(factor or 1) for factor in axes), 2)


BATCH: Final = VariedSize()
"""The batch varies."""


def split_shapes(shapes: Sequence[str]) -> tuple[list[str], VariedSize]:
    """Return the shapes that are numbers alone, and what the others vary.

    Args:
        shapes: As written: ``NAME=224,224,3``, ``tokens=N``.
    """
    has_n = [bool(_axes_of(shape)) for shape in shapes]
    varied = [shape for shape, has in zip(shapes, has_n, strict=True) if has]
    return [shape for shape in shapes if shape not in varied], varied_by(varied)


def varied_by(shapes: Sequence[str]) -> VariedSize:
    """Return what shapes vary that have an N.

    Args:
        shapes: As written; none for the batch.

    Raises:
        InputError: one has no N, or is no shape.
    """
    made = []
    for shape in shapes:
        name, equals, axes = shape.rpartition("=")
        made.append(name.strip() + equals + re.sub(r"\s", "", axes).upper())
        if not _axes_of(made[-1]):
            raise InputError(f"{shape!r} has no N.", hint="Write it as tokens=N or 32N,32N,3.")
        try:
            parse_shapes([shape_at(made[-1], 1)])
        except TargetError:
            raise InputError(
                f"{shape!r} is not a shape with an N.", hint="Write it as tokens=N or 32N,32N,3."
            ) from None
    return VariedSize(tuple(made))


def _axes_of(shape: str) -> list[str]:
    """Return the factors of the axes with an N of one input, ``""`` for 1."""
    return AXIS_OF_N.findall(shape.rpartition("=")[2].upper())
