"""A first bound of a step's memory, from its model before the step is traced."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from analyzer.capture.private_names import get_layer_outputs, get_layers
from analyzer.capture.targets.keras_api import get_optimizer_variables
from analyzer.capture.targets.step_program import Program
from analyzer.model.units import format_bytes


def describe_first_bound(program: Program) -> str:
    """Return a first bound of the step's peak, to append to a stage; empty if no model is known.

    The lower bound holds on every device: parameters and slots live as long as the process. The upper
    one is rough. It adds a gradient of each parameter, and the output of each layer twice: kept for the
    backward pass, and as a gradient or a temporary. Tensors inside a layer are not known yet.
    """
    variables = {id(one): one for model in program.models for one in model.variables}
    for optimizer in program.optimizers:
        variables |= {id(one): one for one in get_optimizer_variables(optimizer)}
    low_bytes = sum(map(_get_bytes, variables.values()))
    if not low_bytes:
        return ""
    batch = program.config.batch_size or 1
    gradients = [one for model in program.models for one in model.trainable_variables]
    outputs = [
        output
        for model in program.models
        for layer in get_layers(model)
        for output in get_layer_outputs(layer)
    ]
    copies = 2 if program.config.mode == "train" else 1
    high_bytes = low_bytes + copies * sum(_get_bytes(output, batch) for output in outputs)
    high_bytes += sum(map(_get_bytes, gradients)) if copies > 1 else 0
    return f"; first bound: {format_bytes(low_bytes)} to roughly {format_bytes(high_bytes)}"


def _get_bytes(tensor: Any, batch: int = 1) -> int:
    """Return the bytes of a variable or a symbolic tensor; an open axis counts as the batch."""
    axes = (batch if axis is None else int(axis) for axis in tensor.shape)
    dtype = tf.as_dtype(str(getattr(tensor.dtype, "name", tensor.dtype)))
    return math.prod(axes) * int(dtype.size)
