"""Figures of the user's own trace that calibrate an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.model.contract.fields import Bytes, Name, Shape, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConvolution:
    """The scratch memory of one convolution in a trace."""

    op: Name
    kind: Name  # ``forward``, ``input`` or ``filter``
    shape: Shape  # of its output
    workspace_bytes: Bytes = 0
    algorithm: Text = ""  # by the names of its kernels; empty if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeNote:
    """Figures of a trace."""

    trace: Text  # the user's path
    card: Name
    memory_limit_bytes: Bytes | None = None
    batch_size: Bytes | None = None  # first axis of most results; None without convolutions
    convolutions: tuple[MeasuredConvolution, ...] = ()  # of the steady step
