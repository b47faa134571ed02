"""Steps of models from packages that others wrote, small ones; each function returns a compiled model.

They need the package that they name: ``keras-hub`` (with ``regex`` and ``tokenizers``),
``keras-unet-collection`` (with ``pillow``), ``keras-tcn``.

Figures: benchmarks/results/accuracy-cards.md.
"""

# ruff: noqa: TID253

from __future__ import annotations

from typing import Any

import keras

layers = keras.layers
SPARSE = "sparse_categorical_crossentropy"
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: Any, loss: Any = LOGITS, optimizer: Any = "adam") -> Any:
    model.compile(optimizer, loss, jit_compile=False)
    return model


def _sentences(
    backbone: Any, names: tuple[str, ...], length: int, key: str = ""
) -> Any:
    entries = {name: keras.Input((length,), dtype="int32", name=name) for name in names}
    x = backbone(entries)
    x = x[key] if key else x
    return compiled(
        keras.Model(entries, layers.Dense(8)(layers.GlobalAveragePooling1D()(x)))
    )


def hub_bert() -> Any:
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        4000, 3, 4, 128, 512, max_sequence_length=64
    )
    names = ("token_ids", "padding_mask", "segment_ids")
    return _sentences(backbone, names, 64, "sequence_output")


def hub_gpt2() -> Any:
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        4000, 3, 4, 128, 512, max_sequence_length=64
    )
    return _sentences(backbone, ("token_ids", "padding_mask"), 64)


def hub_llama() -> Any:
    import keras_hub

    backbone = keras_hub.models.LlamaBackbone(
        4000, 3, 8, 128, 384, num_key_value_heads=4
    )
    return _sentences(backbone, ("token_ids", "padding_mask"), 64)


def hub_roberta() -> Any:
    import keras_hub

    backbone = keras_hub.models.RobertaBackbone(
        4000, 2, 4, 96, 256, max_sequence_length=64
    )
    return _sentences(backbone, ("token_ids", "padding_mask"), 64)


def hub_vit() -> Any:
    import keras_hub

    encoder = keras_hub.models.ViTBackbone((64, 64, 3), 8, 3, 4, 128, 256)
    entry = keras.Input((64, 64, 3))
    return compiled(keras.Model(entry, layers.Dense(10)(encoder(entry)[:, 0])))


def unet_attention() -> Any:
    from keras_unet_collection import models

    net = models.att_unet_2d(
        (64, 64, 3), [16, 32, 64], 2, batch_norm=True, output_activation="Softmax"
    )
    return compiled(net, SPARSE)


def unet_plus() -> Any:
    from keras_unet_collection import models

    net = models.unet_plus_2d((64, 64, 3), [16, 32, 64], 2, batch_norm=True)
    return compiled(net, SPARSE)


def tcn_layer() -> Any:
    import tcn

    entry = keras.Input((128, 16))
    x = tcn.TCN(48, kernel_size=3, dilations=(1, 2, 4, 8), use_layer_norm=True)(entry)
    return compiled(keras.Model(entry, layers.Dense(1)(x)), "mse")
