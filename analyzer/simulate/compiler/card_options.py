"""Options of the compilation for a card; a light module for the command line."""

from dataclasses import dataclass
from typing import Final

TIME_OUT_S: Final = 600.0  # longest time of one compilation


@dataclass(frozen=True, slots=True, kw_only=True)
class CardOptions:
    """``both``: whether to compile also with cuBLAS' products; None for small modules only."""

    both: bool | None = None
    time_out_s: float = TIME_OUT_S
