"""Let Keras decide as it would on a machine with a GPU.

Keras asks TensorFlow which devices there are: whether ``fit`` compiles the step with XLA
(``Trainer._resolve_auto_jit_compile``), whether an LSTM or GRU is one cuDNN kernel
(``_is_gpu_available`` in ``backend/tensorflow/rnn.py``), and whether a convolution in NCHW has to be
turned round (``_cpu_only`` in ``nn.py``). While the block runs, those three find a GPU; nothing else
does, so that user code which sets up real devices is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from analyzer.capture.private_names import (
    CPU_ONLY,
    IS_GPU_AVAILABLE,
    RESOLVE_JIT,
    get_layers,
    import_keras_module,
    is_distributed,
    keras_backend,
    keras_trainer,
)

RESOLVED = "_analyzer_auto_jit"
"""Set on a model whose ``jit_compile`` Keras chose itself."""


@contextlib.contextmanager
def pretend_gpu(*, cudnn: bool = True) -> Iterator[None]:
    """Let Keras find a GPU in the block.

    Args:
        cudnn: Let recurrent layers use cuDNN's kernels, which XLA cannot compile; False where the user
            asked for XLA.
    """
    rnn = import_keras_module("rnn")
    nn = import_keras_module("nn")
    changes: list[tuple[Any, str, Any]] = [
        (keras_trainer.Trainer, RESOLVE_JIT, _resolve),
        (nn, CPU_ONLY, lambda: False),
    ]
    if cudnn:
        changes.append((rnn, IS_GPU_AVAILABLE, lambda: True))
    old = [
        (owner, name, getattr(owner, name)) for owner, name, _ in changes if hasattr(owner, name)
    ]
    for owner, name, _ in old:
        setattr(owner, name, next(new for o, n, new in changes if o is owner and n == name))
    try:
        yield
    finally:
        for owner, name, value in old:
            setattr(owner, name, value)


def _resolve(model: Any) -> bool:
    """Return what ``jit_compile="auto"`` means where there is a GPU."""
    setattr(model, RESOLVED, True)
    if is_distributed(model):
        return False
    for layer in get_layers(model):
        if _runs_on_cudnn(layer):
            layer.supports_jit = False  # as the layer itself says where it is made beside a GPU
    return bool(keras_trainer.model_supports_jit(model))


def _runs_on_cudnn(layer: Any) -> bool:
    """Say whether an LSTM or GRU takes cuDNN's kernel; a model may have been made before the block."""
    cell = getattr(layer, "cell", None)
    if cell is None or getattr(layer, "use_cudnn", None) not in ("auto", True):
        return False
    more = {"reset_after": cell.reset_after} if hasattr(cell, "reset_after") else {}
    return bool(
        keras_backend.cudnn_ok(
            cell.activation, cell.recurrent_activation, layer.unroll, cell.use_bias, **more
        )
    )


def explain_jit(model: Any, jit: bool, asked: bool | None) -> str:
    """Return a sentence on why a Keras model's step is compiled with XLA on a GPU, or is not.

    Args:
        model: The model, compiled inside ``pretend_gpu``.
        jit: Whether its step is compiled.
        asked: What the user asked for; None for Keras' choice.
    """
    if asked is not None:
        choice = "compile this step with XLA" if _resolve(model) else "run this step op by op"
        how = "with XLA" if jit else "op by op"
        return f"Estimated {how} as asked; left alone, Keras' fit would {choice} on a GPU."
    if jit:
        return (
            "Estimated with XLA, which Keras' fit uses on any machine with a GPU; a custom training "
            "loop runs op by op (--no-jit) and needs another amount."
        )
    blocking = [layer for layer in get_layers(model) if not layer.supports_jit]
    if blocking and getattr(model, RESOLVED, False):
        names = ", ".join(f"{layer.name} ({type(layer).__name__})" for layer in blocking[:3])
        return (
            f"Estimated op by op: on a GPU Keras' fit does not compile this model with XLA, because of "
            f"{names}; recurrent layers with use_cudnn=False can be compiled (--jit)."
        )
    return (
        "Estimated op by op: the model is compiled with jit_compile=False or distributed; with "
        "jit_compile='auto' Keras' fit would compile the step with XLA on a GPU (--jit)."
    )


def explain_custom_jit(jit: bool) -> str:
    """Return the sentence for a ``tf.function`` of the user's."""
    if jit:
        return (
            "Estimated with XLA: the tf.function asks for it (jit_compile=True); --no-jit shows it op "
            "by op."
        )
    return (
        "Estimated op by op: a tf.function is compiled with XLA only where it says jit_compile=True. "
        "Keras' fit would compile the same model's step, and needs another amount."
    )
