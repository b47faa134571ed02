"""How a step is run, as a capture notes it and a recording shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """How the step is run; an empty string or None where it is not known."""

    mode: str = ""
    jit: bool | None = None
    batch_size: int | None = None
    optimizer: str = ""
    dtype_policy: str = ""
