"""The meaning of a size: the batch, or the N in input axes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from analyzer.capture.targets.target_spec import parse_shapes
from analyzer.fitting.fit_answer import AXIS_OF_N, insert_size
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError, TargetError

_FIRST_LENGTH: Final = 128
"""Length of the longest varied axis at the first size: every ``keras.applications`` model accepts it."""

_FORMAT_HINT: Final = "Write it as tokens=N or 32N,32N,3."


@dataclass(frozen=True, slots=True)
class VariedSize:
    """The meaning of a size.

    Attributes:
        shapes: Axes of inputs with an N in each: ``tokens=N``, ``32N,32N,3``. Empty for the batch.
    """

    shapes: tuple[str, ...] = ()

    @property
    def template(self) -> str:
        """The shapes as one text, empty for the batch."""
        return " ".join(self.shapes)

    @property
    def power(self) -> int:
        """First guess of the power of the size with which the need grows.

        2 is right for the side of an image and for attention over a sequence.
        """
        return 2 if self.shapes else 1

    def apply(self, options: CaptureOptions, size: int) -> CaptureOptions:
        """Return the options of the step at a size."""
        if not self.shapes:
            return replace(options, batch_size=size)
        shapes = parse_shapes([insert_size(shape, size) for shape in self.shapes])
        return replace(options, shapes={**options.shapes, **shapes})

    def first_size(self, options: CaptureOptions) -> int:
        """Return the size at which a search starts: the wanted batch, or a length that most accept."""
        if not self.shapes:
            return options.open_batch_size
        factors = [factor for shape in self.shapes for factor in _factors_of_n(shape)]
        return max(_FIRST_LENGTH // max(int(factor or 1) for factor in factors), 2)


BATCH: Final = VariedSize()
"""The batch varies."""


def split_shapes(shapes: Sequence[str]) -> tuple[list[str], VariedSize]:
    """Separate shapes without an N from those with one, such as ``224,224,3`` and ``tokens=N``."""
    varied = [shape for shape in shapes if _factors_of_n(shape)]
    return [shape for shape in shapes if shape not in varied], parse_varied(varied)


def parse_varied(shapes: Sequence[str]) -> VariedSize:
    """Return the meaning of a size for shapes with an N; no shapes stand for the batch.

    Raises:
        InputError: a shape has no N or is malformed.
    """
    parsed = []
    for shape in shapes:
        name, equals, axes = shape.rpartition("=")
        parsed.append(name.strip() + equals + re.sub(r"\s", "", axes).upper())
        if not _factors_of_n(parsed[-1]):
            raise InputError(f"The shape {shape!r} has no N.", hint=_FORMAT_HINT)
        try:
            parse_shapes([insert_size(parsed[-1], 1)])
        except TargetError:
            raise InputError(f"{shape!r} is not a shape with an N.", hint=_FORMAT_HINT) from None
    return VariedSize(tuple(parsed))


def _factors_of_n(shape: str) -> list[str]:
    """Return the factors of the axes with an N of one input, ``""`` for 1."""
    return AXIS_OF_N.findall(shape.rpartition("=")[2].upper())
