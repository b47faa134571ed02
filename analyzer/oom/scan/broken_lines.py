"""Lines that a screen broke at its width: a log copied from a terminal or a console's window."""

from __future__ import annotations

import re
from typing import Final

_HEAD: Final = re.compile(
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: [IWEF] "
    rb"|[IWEF]\d{4} \d\d:\d\d|[IWEF] \S*tensorflow"
)
"""How TensorFlow's logger begins a line."""

_NARROWEST: Final = 40  # columns
_WIDEST: Final = 400
_BLANKS: Final = 2
_FEWEST: Final = 3  # lines with a head that are as wide as the screen and go on in the next


def width_of_screen(sample: bytes) -> int:
    """Return the width at which a log's lines are broken; 0 where they are not.

    No line is wider, and lines that TensorFlow's logger began end there and go on in one without a head.

    Args:
        sample: The log's first lines.
    """
    lines = sample.replace(b"\r\n", b"\n").split(b"\n")
    width = max(map(len, lines), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return 0
    broken = whole = 0
    for line, after in zip(lines, lines[1:], strict=False):
        if len(line) == width and _HEAD.match(line):
            is_broken = bool(after) and not _HEAD.match(after)
            broken, whole = broken + is_broken, whole + (not is_broken)
    return width if broken >= _FEWEST and whole * 10 <= broken else 0


def unbroken(part: bytes, width: int) -> bytes:
    """Return lines as they were before a screen broke them; their number stays the same.

    Args:
        part: Whole lines.
        width: Of the screen.
    """
    out: list[bytes] = []
    taken = 0  # lines that went into the last one
    is_open, missing = False, 0
    for line in part.split(b"\n"):
        bare = line.rstrip(b"\r")
        if is_open and not _HEAD.match(bare):
            out[-1] += b" " * missing + bare
            taken += 1
        else:
            out.extend([b""] * taken)
            out.append(bare)
            taken = 0
        missing = width - len(bare)  # blanks at its end, which a copy leaves out
        is_open = missing == 0 or (0 < missing <= _BLANKS and _HEAD.match(out[-1]) is not None)
    out.extend([b""] * taken)
    return b"\n".join(out)
