"""cuDNN's recurrent layers (``CudnnRNN*``): Keras' LSTM and GRU on a GPU.

The whole sequence is one kernel. cuDNN stores data for the backward pass in a *reserve space* of
unpublished layout. It must contain the activation of each gate and the states of each step, for the
padded sequence. ``cudnn_rnn_ops.cc``: ``CudnnRNNForwardOp`` allocates the results, then the length of
each sequence (``seq_lengths``, 4 bytes each), then the workspace (a temporary), then the reserve space
(output 3; ``CreateRnnTempSpace`` in ``cuda_dnn.cc``). The backward pass allocates the lengths and the
workspace last.
"""

from __future__ import annotations

import math
from typing import Final

from analyzer.simulate.kernels.shared.op_call import (
    ELSEWHERE,
    NO_BUFFER,
    Call,
    MemoryPlan,
    Output,
    Way,
    allocate_all,
    without_zeros,
)

_KEPT: Final = {"lstm": 6, "gru": 5, "rnn_tanh": 2, "rnn_relu": 2}
"""Numbers stored per unit, step and row of the batch: the gates (four, three, one), the state of the
cell and its tanh (LSTM), the candidate before its gate (GRU), the state."""

_GATES: Final = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def plan_forward(call: Call) -> MemoryPlan:
    """Allocate the outputs, products of inputs and gate weights as workspace, the reserve space."""
    mode = str(call.attr("rnn_mode", "lstm"))
    units = _count_unit_bytes(call, call.out_shape(0), call.size(0))
    reserve = _KEPT.get(mode, 6) * units if call.attr("is_training", True) else 0
    workspace = _GATES.get(mode, 4) * units
    outputs = allocate_all(call)
    cell = outputs[2] if mode == "lstm" else NO_BUFFER
    kept = Output(Way.ALLOCATE, reserve) if reserve else NO_BUFFER
    beside = without_zeros((_lengths_bytes(call), workspace))
    return MemoryPlan(
        outputs=(*outputs[:2], cell, kept, ELSEWHERE)[: len(outputs)],
        amid_bytes=beside if reserve else (),
        after_bytes=() if reserve else beside,
        unknown_bytes=workspace + reserve,
    )


def plan_backward(call: Call) -> MemoryPlan:
    """Allocate the gradients of input, states and parameters, and of the gates as workspace.

    Each output has the shape of the input with its index.
    """
    mode = str(call.attr("rnn_mode", "lstm"))
    shape, size_bytes = call.shape(5) or call.shape(0), call.input_size(5) or call.input_size(0)
    workspace = _GATES.get(mode, 4) * _count_unit_bytes(call, shape, size_bytes)
    sizes = [call.size(index) or call.input_size(index) for index in range(len(call.op.outputs))]
    if mode != "lstm":
        sizes[2:3] = [0]
    return MemoryPlan(
        outputs=tuple(Output(Way.ALLOCATE, size) if size else NO_BUFFER for size in sizes),
        after_bytes=without_zeros((_lengths_bytes(call), workspace)),
        unknown_bytes=workspace,
    )


def _lengths_bytes(call: Call) -> int:
    """Return the bytes of the sequence lengths, an input of the third version of the ops."""
    states = call.shape(1)
    has_lengths = call.op.type.endswith("V3")
    return 4 * states[1] if has_lengths and states and len(states) > 1 else 0


def _count_unit_bytes(call: Call, shape: tuple[int, ...] | None, size_bytes: int) -> int:
    """Return the bytes of one number per unit, step and row: the size of the output."""
    if shape is not None and size_bytes:
        return size_bytes
    inputs, state = call.shape(0), call.shape(1)
    if inputs is None or state is None:
        return 0
    item_bytes = call.input_size(0) // max(math.prod(inputs), 1)
    return inputs[0] * inputs[1] * state[-1] * item_bytes
