"""Resolves many targets in one process: each line in is a case, each line out what became of it."""

# ruff: noqa: TID253

import gc
import json
import sys
from pathlib import Path

import keras
import msgspec
import option_targets
import tensorflow as tf

from analyzer.capture.process.capture_worker import convert_error
from analyzer.capture.run.step_capture import (
    name_optimizer,
    note_compiled_functions,
    trace_function,
)
from analyzer.capture.targets.keras_step import get_loss_name
from analyzer.capture.targets.resolve_target import resolve
from analyzer.capture.targets.target_spec import parse_target
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.errors import InputError


def list_shapes(program):
    """Return the shapes of the step's inputs: its arguments, or the batches of its iterator."""
    arguments = [getattr(one, "element_spec", one) for one in program.traced_args]
    flat = tf.nest.flatten(arguments)
    return [tensor.shape.as_list() for tensor in flat if hasattr(tensor, "shape")]


def outcome(target, options):
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session()
    gc.collect()  # the layers of earlier cases are not this one's
    try:
        program = resolve(
            parse_target(target), msgspec.convert(options, CaptureOptions)
        )
        function = trace_function(program)
        if program.function is None:
            program.call()
    except InputError as error:
        return {"error": str(error)}
    except BaseException as error:  # as the child that captures tells it
        return {"error": str(convert_error(error, target, "building the model"))}
    model = program.models[0] if program.models else None
    loss = getattr(model, "loss", None)
    return {
        "optimizer": name_optimizer(program.optimizers),
        "batch_size": program.config.batch_size,
        "mode": program.config.mode,
        "jit": program.config.jit,
        "loss": get_loss_name(loss),
        "shapes": list_shapes(program),
        "policy": program.config.dtype_policy,
        "notes": [*program.messages, *note_compiled_functions(program, function)],
    }


if __name__ == "__main__":
    gc.freeze()  # TensorFlow's own objects need not be looked through for each case
    option_targets.saved(Path.cwd())
    cases = json.load(sys.stdin)
    tf.get_logger().setLevel("ERROR")
    results = {
        name: outcome(target, options) for name, (target, options) in cases.items()
    }
    Path("results.json").write_text(json.dumps(results))
