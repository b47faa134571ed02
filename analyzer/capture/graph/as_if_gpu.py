"""Let Keras decide as it would on a machine with a GPU.

Keras asks for a GPU in three places: whether ``fit`` compiles the step with XLA
(``Trainer._resolve_auto_jit_compile``), whether an LSTM or GRU is one cuDNN kernel
(``_is_gpu_available`` in ``backend/tensorflow/rnn.py``), and whether a convolution in NCHW must be
transposed (``_cpu_only`` in ``nn.py``). Only these three see a GPU here: user code that sets up real
devices is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

from analyzer.capture.private_names import (
    CPU_ONLY,
    IS_GPU_AVAILABLE,
    RESOLVE_JIT,
    get_layers,
    is_distributed,
    keras_backend,
    keras_nn,
    keras_rnn,
    keras_trainer,
)

_RESOLVED: Final = "_analyzer_auto_jit"
"""Set on a model if Keras chose its ``jit_compile``."""


@contextlib.contextmanager
def pretend_gpu(*, cudnn: bool = True) -> Iterator[None]:
    """Let Keras find a GPU in the block; recurrent layers use cuDNN's kernels if ``cudnn``.

    XLA cannot compile these kernels.
    """
    changes: list[tuple[Any, str, Any]] = [
        (keras_trainer.Trainer, RESOLVE_JIT, _resolve_jit),
        (keras_nn, CPU_ONLY, lambda: False),
        (keras_rnn, IS_GPU_AVAILABLE, lambda: cudnn),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, new in changes:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, new))
        yield


def _resolve_jit(model: Any) -> bool:
    """Return the meaning of ``jit_compile="auto"`` on a machine with a GPU."""
    setattr(model, _RESOLVED, True)
    if is_distributed(model):
        return False
    for layer in get_layers(model):
        if _uses_cudnn(layer):
            layer.supports_jit = False  # as the layer says itself when it is made on a GPU machine
    return bool(keras_trainer.model_supports_jit(model))


def _uses_cudnn(layer: Any) -> bool:
    """Say whether an LSTM or GRU uses cuDNN's kernel; it may have been made before the block."""
    cell = getattr(layer, "cell", None)
    if cell is None or getattr(layer, "use_cudnn", None) not in ("auto", True):
        return False
    options = {"reset_after": cell.reset_after} if hasattr(cell, "reset_after") else {}
    activations = cell.activation, cell.recurrent_activation
    return bool(keras_backend.cudnn_ok(*activations, layer.unroll, cell.use_bias, **options))


def explain_jit(model: Any, jit: bool, asked: bool | None) -> str:
    """Return a sentence on why a Keras model's step uses XLA on a GPU; ``asked`` is --jit."""
    if asked is not None:
        choice = "compile this step with XLA" if _resolve_jit(model) else "run this step op by op"
        how = "with XLA" if jit else "op by op"
        return f"Estimated {how} as asked; by default Keras' fit would {choice} on a GPU."
    if jit:
        return (
            "Estimated with XLA, as Keras' fit runs on any GPU. A custom training loop runs op by op "
            "(--no-jit) and needs a different amount."
        )
    blocking = [layer for layer in get_layers(model) if not layer.supports_jit]
    if blocking and getattr(model, _RESOLVED, False):
        names = ", ".join(f"{layer.name} ({type(layer).__name__})" for layer in blocking[:3])
        return (
            f"Estimated op by op: Keras' fit cannot compile {names} with XLA. Recurrent layers with "
            "use_cudnn=False can be compiled (--jit)."
        )
    return (
        "Estimated op by op: the model has jit_compile=False or is distributed. With "
        "jit_compile='auto' Keras' fit would use XLA on a GPU (--jit)."
    )


def explain_custom_jit(jit: bool | None) -> str:
    """Return a sentence on why a custom ``tf.function`` uses XLA, or not."""
    if jit:
        return (
            "Estimated with XLA: the tf.function has jit_compile=True; --no-jit runs it op by op."
        )
    return (
        "Estimated op by op: the tf.function has no jit_compile=True. Keras' fit would compile the "
        "same model's step with XLA, and needs a different amount."
    )
