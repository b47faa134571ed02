"""How the logs beside this file were made: real out-of-memory failures of TensorFlow 2.21.

``cpu_*``: ``TF_CPU_ALLOCATOR_USE_BFC=true TF_CPU_BFC_MEM_LIMIT_IN_MB=200 python make_logs.py KIND``.
``gpu_*``: ``python make_logs.py --card GPUS MEMORY_MIB CONTEXT_MIB KIND LIMIT``, on simulated cards
(``benchmarks/results/simulated-card.md``): TensorFlow's GPU runtime and allocator, no kernels.
``LIMIT``: MiB, ``growth`` or ``-``; ``gpu_async*`` with ``TF_GPU_ALLOCATOR=cuda_malloc_async``,
``gpu_refused_growth`` with ``TF_FORCE_GPU_ALLOW_GROWTH=true``. What goes to standard error is the log;
the library's own frames were left out of the tracebacks. ``gpu_engines`` is the log of
``analyze trace gpu_steps.py:cnn --batch-size 1024 --gpu t4 --no-jit --limit 240MiB``.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def on_cards(gpus: str, memory: str, context: str, *job: str) -> None:
    """Run the job in the place of this process, with simulated cards."""
    from analyzer.model.contract.child_messages import CONTEXT, CaptureOptions
    from analyzer.simulated_card.card_environment import (
        encode_card,
        make_card_environment,
        parse_cards,
    )

    cache = Path(tempfile.mkdtemp(prefix="simulated_card-"))
    variables = make_card_environment(CaptureOptions(gpu=gpus), cache)
    context_bytes = CONTEXT.usual if context == "-" else int(context) << 20
    cards = []
    for gpu in parse_cards(gpus):
        size = gpu.memory_bytes if memory == "-" else int(memory) << 20
        cards.append(encode_card(gpu, size, context_bytes))

    os.execve(
        sys.executable,
        [sys.executable, __file__, *job],
        {**os.environ, **variables, "SIMULATED_CARDS": ";".join(cards)},
    )


def run(kind: str, limit: str = "-") -> None:
    """Fail for want of memory."""
    import tensorflow as tf

    for card in tf.config.list_physical_devices("GPU"):
        if limit == "growth":
            tf.config.experimental.set_memory_growth(card, True)
        elif limit != "-":
            pool = tf.config.LogicalDeviceConfiguration(memory_limit=int(limit))
            tf.config.set_logical_device_configuration(card, [pool])
    import numpy as np

    kept: list[Any] = []
    if kind in ("eager", "large"):
        tensor = tf.ones([1024, 1024, 16 if kind == "large" else 1])
        for factor in range(100_000):
            kept.append(tensor * float(factor))
    elif kind == "fragments":
        one = tf.constant(1, tf.uint8)
        kept = [tf.zeros([3 << 20], tf.uint8) + one for _ in range(60)]
        kept[::2] = [None] * 30
        tf.fill([40 << 20], one)
    elif kind == "data":
        images = np.zeros((4000, 64, 64, 3), "float32")
        kept = [tf.constant(images), tf.constant(images)]
    elif kind == "embed":
        _fit(_embedding(), 64)
    elif kind == "two":
        with tf.distribute.MirroredStrategy().scope():
            model = _convolutions(False)
        _fit(model, 512)
    else:
        _fit(_convolutions(kind == "conv_xla"), 256)


def _fit(model: Any, batch_size: int) -> None:
    import numpy as np

    (given,) = model.inputs
    inputs = np.zeros((512, *given.shape[1:]), given.dtype)
    model.fit(inputs, np.zeros((512,), "int32"), batch_size=batch_size)


def _convolutions(jit: bool) -> Any:
    import keras
    from keras import layers

    head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    body = [layers.Conv2D(size, 3, activation="relu") for size in (64, 128)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *body, *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=jit)
    return model


def _embedding() -> Any:
    import keras
    from keras import layers

    table = layers.Embedding(200_000, 512)
    head = [layers.GlobalAveragePooling1D(), layers.Dense(10)]
    model = keras.Sequential([keras.Input((100,), dtype="int32"), table, *head])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model


if __name__ == "__main__":
    if sys.argv[1] == "--card":
        on_cards(*sys.argv[2:])
    run(*sys.argv[1:])
