"""Steps with networks of other people's packages, written as their own pages show them.

None of them was looked at while a rule was made. The packages are no dependency of this one:

    pip install keras-tcn keras-unet-collection keras-self-attention keras-hub dm-sonnet gpflow

Each function returns a compiled Keras model or ``(tf_function, args)``;
``benchmarks/accuracy/accuracy.py --packages`` estimates each and holds it against real runs.
"""

# ruff: noqa: TID253

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Step = tuple[Any, tuple[Any, ...]]
NAMES = """
    tcn unet_2d att_unet self_attention sonnet_mlp sonnet_resnet sonnet_vqvae gpflow_svgp hub_vit
    hub_gemma hub_resnet
"""


def _labels(count: int, classes: int) -> Any:
    return tf.random.uniform((count,), 0, classes, tf.int32)


def _cross_entropy(labels: Any, logits: Any) -> Any:
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    )


def tcn() -> Any:
    from tcn import TCN

    model = keras.Sequential(
        [
            keras.Input((200, 8)),
            TCN(64, dilations=[1, 2, 4, 8, 16], use_skip_connections=True),
            layers.Dense(10),
        ]
    )
    model.compile("adam", LOGITS)
    return model


def unet_2d() -> Any:
    from keras_unet_collection import models

    model = models.unet_2d(
        (96, 96, 3),
        [16, 32, 64, 128],
        n_labels=3,
        stack_num_down=2,
        stack_num_up=2,
        activation="ReLU",
        output_activation="Softmax",
        batch_norm=True,
        pool=True,
        unpool=True,
    )
    model.compile("adam", "categorical_crossentropy")
    return model


def att_unet() -> Any:
    from keras_unet_collection import models

    model = models.att_unet_2d(
        (64, 64, 3),
        [16, 32, 64],
        n_labels=2,
        stack_num_down=2,
        stack_num_up=2,
        activation="ReLU",
        atten_activation="ReLU",
        attention="add",
        output_activation="Sigmoid",
        batch_norm=True,
        pool=False,
        unpool=False,
    )
    model.compile(keras.optimizers.RMSprop(1e-4), "binary_crossentropy")
    return model


def self_attention() -> Any:
    from keras_self_attention import SeqSelfAttention

    model = keras.Sequential(
        [
            keras.Input((100,), dtype="int32"),
            layers.Embedding(5000, 128),
            layers.Bidirectional(layers.LSTM(64, return_sequences=True)),
            SeqSelfAttention(attention_activation="sigmoid"),
            layers.Dense(7, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def sonnet_mlp() -> Step:
    import sonnet as snt

    network, optimizer = snt.nets.MLP([512, 512, 10]), snt.optimizers.Adam(1e-3)
    images, labels = tf.random.normal((128, 784)), _labels(128, 10)
    network(images)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _cross_entropy(labels, network(images))
        variables = network.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step, (images, labels)


def sonnet_resnet() -> Step:
    import sonnet as snt

    network, optimizer = (
        snt.nets.ResNet([1, 1, 1, 1], 10),
        snt.optimizers.Momentum(0.1, 0.9),
    )
    images, labels = tf.random.normal((8, 64, 64, 3)), _labels(8, 10)
    network(images, is_training=True)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _cross_entropy(labels, network(images, is_training=True))
        variables = network.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step, (images, labels)


def sonnet_vqvae() -> Step:
    import sonnet as snt

    encoder = snt.Sequential(
        [
            snt.Conv2D(64, 4, stride=2),
            tf.nn.relu,
            snt.Conv2D(64, 4, stride=2),
            tf.nn.relu,
            snt.Conv2D(32, 1),
        ]
    )
    quantizer = snt.nets.VectorQuantizerEMA(32, 256, 0.25, 0.99)
    decoder = snt.Sequential(
        [
            snt.Conv2DTranspose(64, 4, stride=2),
            tf.nn.relu,
            snt.Conv2DTranspose(3, 4, stride=2),
        ]
    )
    optimizer, images = snt.optimizers.Adam(3e-4), tf.random.normal((32, 32, 32, 3))
    decoder(quantizer(encoder(images), is_training=True)["quantize"])

    @tf.function
    def step(images: Any) -> Any:
        with tf.GradientTape() as tape:
            quantized = quantizer(encoder(images), is_training=True)
            loss = tf.reduce_mean((decoder(quantized["quantize"]) - images) ** 2)
            loss += quantized["loss"]
        variables = encoder.trainable_variables + decoder.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step, (images,)


def gpflow_svgp() -> Step:
    import gpflow

    points = np.random.default_rng(1).random((1000, 4))
    values = np.sin(points.sum(1, keepdims=True))
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0] * 4),
        gpflow.likelihoods.Gaussian(),
        points[:100].copy(),
        num_data=1000,
    )
    optimizer, variables = keras.optimizers.Adam(0.01), list(model.trainable_variables)
    optimizer.build(variables)

    @tf.function
    def step(points: Any, values: Any) -> Any:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            loss = model.training_loss((points, values))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step, (tf.constant(points[:256]), tf.constant(values[:256]))


def hub_vit() -> Any:
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(96, 96, 3),
        patch_size=(16, 16),
        num_layers=3,
        num_heads=4,
        hidden_dim=128,
        mlp_dim=256,
    )
    images = keras.Input((96, 96, 3))
    model = keras.Model(
        images, layers.Dense(10)(layers.GlobalAveragePooling1D()(backbone(images)))
    )
    model.compile(keras.optimizers.AdamW(), LOGITS)
    return model


def hub_gemma() -> Any:
    import keras_hub

    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=2000,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=1,
        hidden_dim=128,
        intermediate_dim=512,
        head_dim=32,
    )
    inputs = {
        name: keras.Input((64,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    model = keras.Model(
        inputs, backbone.token_embedding(backbone(inputs), reverse=True)
    )
    model.compile(keras.optimizers.Adafactor(), LOGITS)
    return model


def hub_resnet() -> Any:
    import keras_hub

    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 128],
        stackwise_num_blocks=[2, 2, 2],
        stackwise_num_strides=[1, 2, 2],
        block_type="basic_block",
        image_shape=(96, 96, 3),
    )
    images = keras.Input((96, 96, 3))
    model = keras.Model(
        images, layers.Dense(10)(layers.GlobalAveragePooling2D()(backbone(images)))
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), LOGITS)
    return model
