"""The settings of the allocator that the user asked about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Settings of the allocator to replay under; None keeps what the recording ran under."""

    memory_limit_bytes: int | None = None
    growth: bool | None = None
    fragmentation_fraction: float | None = None

    @property
    def is_asked(self) -> bool:
        """Whether anything is to be different."""
        return any(
            value is not None
            for value in (self.memory_limit_bytes, self.growth, self.fragmentation_fraction)
        )
