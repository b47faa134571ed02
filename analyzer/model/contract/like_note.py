"""Figures of the user's own trace that calibrate an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.model.contract.fields import Bytes, Name, Shape, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConvolution:
    """The scratch memory of one convolution in a trace.

    Attributes:
        op: Its name in the trace.
        kind: ``forward``, ``input`` or ``filter``: the result, or the gradient of one of its inputs.
        shape: Shape of its output.
        workspace_bytes: Bytes of cuDNN's workspace; 0 for none.
        algorithm: cuDNN's algorithm by the names of its kernels; empty if unknown.
    """

    op: Name
    kind: Name
    shape: Shape
    workspace_bytes: Bytes = 0
    algorithm: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeNote:
    """Figures of a trace.

    Attributes:
        trace: The user's path.
        card: The card's name in the card table.
        memory_limit_bytes: TensorFlow's limit; None if the trace has none.
        batch_size: First axis of most results of convolutions; None without convolutions.
        convolutions: The convolutions of its steady step.
    """

    trace: Text
    card: Name
    memory_limit_bytes: Bytes | None = None
    batch_size: Bytes | None = None
    convolutions: tuple[MeasuredConvolution, ...] = ()
