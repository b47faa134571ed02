"""The dtype policy that was asked for, and whether the target follows it."""

from __future__ import annotations

from typing import Any

import keras

from analyzer.capture.private_names import get_layers, has_own_weights
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.targets.honoured_options import make_policy_error
from analyzer.capture.targets.keras_api import get_layer_classes
from analyzer.capture.targets.step_program import Program
from analyzer.model.errors import TargetError


def ask_for(policy: str) -> None:
    """Make it Keras' policy for all layers that are made from now on.

    Raises:
        TargetError: Keras knows none of this name.
    """
    try:
        keras.config.set_dtype_policy(policy)
    except ValueError:
        raise TargetError(
            f"Keras has no dtype policy {policy!r}.",
            hint="Try float32, mixed_float16 or mixed_bfloat16.",
        ) from None


def check_followed(program: Program, text: str, policy: str) -> None:
    """Refuse a target that was made under another policy: loaded with its own, or set in its code.

    Args:
        program: The step.
        text: What the user named, for the error.
        policy: Name of the policy that was asked for.

    Raises:
        InputError: no layer with weights follows the policy.
    """
    layers = [layer for model in program.models for layer in get_layers(model)] or list(
        find_live_objects(get_layer_classes())
    )
    found = {str(layer.dtype_policy.name) for layer in layers if _owns_weights(layer)}
    if policy not in found:
        raise make_policy_error(text, policy, ", ".join(sorted(found)))


def _owns_weights(layer: Any) -> bool:
    """Say whether weights are the layer's own: a model's policy says nothing of its layers'."""
    return has_own_weights(layer) and hasattr(layer, "dtype_policy")
