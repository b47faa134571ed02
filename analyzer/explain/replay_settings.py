"""Allocator settings that the user asked about."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Allocator settings for a replay; None keeps the recording's setting."""

    memory_limit_bytes: int | None = None
    growth: bool | None = None

    @property
    def is_asked(self) -> bool:
        """Whether any setting is given."""
        return self != NOTHING_ASKED


NOTHING_ASKED: Final = WhatIf()
