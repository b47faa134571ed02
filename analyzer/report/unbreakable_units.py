"""Numbers and their units, which no line may part."""

from __future__ import annotations

import re
from typing import Final

NO_BREAK_SPACE: Final = "\u00a0"
UNIT: Final = re.compile(r"(?<=\d) (?=(?:B|[KMGT]iB|bytes|[mµn]?s|%|[x\u00d7])(?![A-Za-z]))")
"""The space between a number and its unit, where no line may end; ``format.js`` has the same."""


def unbroken(text: object) -> str:
    """Return ``text`` with a no-break space between each number and its unit."""
    return UNIT.sub(NO_BREAK_SPACE, str(text))
