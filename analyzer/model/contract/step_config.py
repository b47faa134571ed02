"""How a step is run, as a capture notes it and a recording shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """How the step is run; an empty string or None where it is not known.

    Attributes:
        mode: ``train`` or ``infer``; empty for a step of the user's own, which does what its code says.
        jit: XLA compiles it.
        batch_size: Size of the first axis of what it is fed.
        optimizer: Class of the optimizer.
        dtype_policy: Keras dtype policy.
    """

    mode: str = ""
    jit: bool | None = None
    batch_size: int | None = None
    optimizer: str = ""
    dtype_policy: str = ""
