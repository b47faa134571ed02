"""What a user may choose of a card's compilation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TIME_OUT_S: Final = 600.0  # seconds for one compilation


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOptions:
    """What a user may choose of a card's compilation.

    Attributes:
        both: Compile with cuBLAS' products too; None for small modules only.
        time_out_s: After which one compilation is ended.
    """

    both: bool | None = None
    time_out_s: float = TIME_OUT_S
