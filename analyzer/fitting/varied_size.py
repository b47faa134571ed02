"""The meaning of a size: the batch, or the N in the axes of inputs."""

import re
from collections.abc import Sequence
from dataclasses import replace

from analyzer.capture.targets.target_spec import parse_shapes
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError

# An axis that varies: ``N``, or a multiple of it, ``32N``.
_AXIS_OF_N = re.compile(r"(?<![A-Za-z0-9])(\d*)N(?![A-Za-z0-9])")

# Length of the longest varied axis at the first size, which most models accept.
_FIRST_LENGTH = 128

_FORMAT_HINT = "Write it as tokens=N or 32N,32N,3."


# The shapes with an N, such as ``32N,32N,3``; none if the batch varies.
Varied = tuple[str, ...]


def apply_size(varied: Varied, options: CaptureOptions, size: int) -> CaptureOptions:
    """Return the options of the step at a size."""
    if not varied:
        return replace(options, batch_size=size)

    shapes = parse_shapes([insert_size(shape, size) for shape in varied])
    return replace(options, shapes={**options.shapes, **shapes})


def choose_first_size(varied: Varied, options: CaptureOptions) -> int:
    """Return the size at which a search starts."""
    if not varied:
        return max(options.open_batch_size, 1)

    factors = []
    for shape in varied:
        factors += [int(factor or 1) for factor in _factors_of_n(shape)]

    return max(_FIRST_LENGTH // max(factors), 2)


def split_shapes(shapes: Sequence[str]) -> tuple[list[str], Varied]:
    """Separate shapes without an N from those with one."""
    varied = [shape for shape in shapes if _factors_of_n(shape)]
    fixed = [shape for shape in shapes if shape not in varied]

    return fixed, parse_varied(varied)


def parse_varied(shapes: Sequence[str]) -> Varied:
    """Return the meaning of a size for shapes with an N."""
    parsed = []

    for shape in shapes:
        name, equals, axes = shape.rpartition("=")

        plain = name.strip() + equals + "".join(axes.split()).upper()
        if not _factors_of_n(plain):
            raise InputError(f"The shape {shape!r} has no N.", hint=_FORMAT_HINT)

        parse_shapes([insert_size(plain, 1)])  # raises if it is not a shape
        parsed.append(plain)

    return tuple(parsed)


def _factors_of_n(shape: str) -> list[str]:
    """Return the digits before each N of a shape; ``""`` for a bare N."""
    return _AXIS_OF_N.findall(shape.rpartition("=")[2].upper())


def insert_size(shape: str, size: int) -> str:
    """Replace N by a number in the axes of one or more inputs, separated by spaces.

    >>> insert_size("image=32N,32N,3 tokens=N", 4)
    'image=128,128,3 tokens=4'
    """

    def multiply(axis: re.Match[str]) -> str:
        return str(int(axis[1] or 1) * size)

    parts = []
    for part in shape.split(" "):
        name, equals, axes = part.rpartition("=")
        parts.append(name + equals + _AXIS_OF_N.sub(multiply, axes))

    return " ".join(parts)
