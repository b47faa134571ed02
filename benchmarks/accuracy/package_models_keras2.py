"""Steps with networks of other people's packages that need Keras 2, as their own pages show them.

None of them was looked at while a rule was made. The packages are no dependency of this one:

    pip install tf_keras 'transformers<4.56' tensorflow-recommenders larq tensorflow-probability

Each function returns a compiled Keras model or ``(tf_function, args)``;
``benchmarks/accuracy/accuracy.py --packages-keras-2`` estimates each and holds it against real runs.
"""

# ruff: noqa: TID253

from __future__ import annotations

import os
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf
import tf_keras as keras

layers = keras.layers
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Step = tuple[Any, tuple[Any, ...]]
NAMES = """
    tf_bert tf_gpt2 tf_vit tf_t5 recommenders_dcn larq_binary tfp_bayes tfp_flow
"""


def _integers(shape: tuple[int, ...], below: int, first: int = 0) -> Any:
    return tf.random.uniform(shape, first, below, tf.int32)


def _step_of(
    loss_of: Any, variables: Any, arguments: tuple[Any, ...], optimizer: Any = None
) -> Step:
    """Return a step that applies the gradient of a loss, and its arguments."""
    optimizer = optimizer or keras.optimizers.Adam(1e-4)
    optimizer.build(variables)

    @tf.function
    def step(*arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(*arguments))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step, arguments


def _labelled(model: Any, inputs: Any, labels: Any) -> Step:
    """Return a step of a model of Transformers that works out its loss from labels."""
    model(inputs, labels=labels)
    return _step_of(
        lambda inputs, labels: model(inputs, labels=labels, training=True).loss,
        model.trainable_variables,
        (inputs, labels),
    )


def tf_bert() -> Step:
    from transformers import BertConfig, TFBertForSequenceClassification

    model = TFBertForSequenceClassification(
        BertConfig(
            vocab_size=3000,
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=512,
            num_labels=4,
        )
    )
    tokens, labels = _integers((16, 64), 3000), _integers((16,), 4)
    return _labelled(model, tokens, labels)


def tf_gpt2() -> Step:
    from transformers import GPT2Config, TFGPT2LMHeadModel

    model = TFGPT2LMHeadModel(
        GPT2Config(vocab_size=3000, n_embd=128, n_layer=3, n_head=4, n_positions=128)
    )
    tokens = _integers((8, 128), 3000)
    model(tokens)
    return _step_of(
        lambda tokens: model(tokens, labels=tokens, training=True).loss,
        model.trainable_variables,
        (tokens,),
    )


def tf_vit() -> Step:
    from transformers import TFViTForImageClassification, ViTConfig

    model = TFViTForImageClassification(
        ViTConfig(
            image_size=64,
            patch_size=8,
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=512,
            num_labels=10,
        )
    )
    images, labels = tf.random.normal((8, 3, 64, 64)), _integers((8,), 10)
    return _labelled(model, images, labels)


def tf_t5() -> Step:
    from transformers import T5Config, TFT5ForConditionalGeneration

    model = TFT5ForConditionalGeneration(
        T5Config(
            vocab_size=2000,
            d_model=96,
            d_kv=24,
            d_ff=256,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
    )
    tokens, labels = _integers((8, 48), 2000, 1), _integers((8, 24), 2000, 1)
    return _labelled(model, tokens, labels)


class _DeepAndCross(keras.Model):
    def __init__(self) -> None:
        import tensorflow_recommenders as tfrs

        super().__init__()
        self.embeddings = [layers.Embedding(2000, 32) for _ in range(6)]
        self.cross = tfrs.layers.dcn.Cross(projection_dim=64)
        self.deep = [
            layers.Dense(192, "relu"),
            layers.Dense(64, "relu"),
            layers.Dense(1),
        ]

    def call(self, inputs: Any) -> Any:
        columns = enumerate(self.embeddings)
        hidden = tf.concat([table(inputs[:, column]) for column, table in columns], 1)
        hidden = self.cross(hidden)
        for layer in self.deep:
            hidden = layer(hidden)
        return hidden


def recommenders_dcn() -> Step:
    model = _DeepAndCross()
    inputs, labels = _integers((512, 6), 2000), tf.random.uniform((512, 1))
    model(inputs)
    return _step_of(
        lambda inputs, labels: (model(inputs, training=True) - labels) ** 2,
        model.trainable_variables,
        (inputs, labels),
        keras.optimizers.Adagrad(0.1),
    )


def larq_binary() -> Any:
    import larq as lq

    first = {"kernel_quantizer": "ste_sign", "kernel_constraint": "weight_clip"}
    rest = {**first, "input_quantizer": "ste_sign"}
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            lq.layers.QuantConv2D(64, 3, use_bias=False, **first),
            layers.BatchNormalization(scale=False),
            lq.layers.QuantConv2D(64, 3, use_bias=False, **rest),
            layers.MaxPooling2D(),
            layers.BatchNormalization(scale=False),
            layers.Flatten(),
            lq.layers.QuantDense(10, **rest),
        ]
    )
    model.compile("adam", LOGITS)
    return model


def tfp_bayes() -> Any:
    import tensorflow_probability as tfp

    def divergence(posterior: Any, prior: Any, _: Any) -> Any:
        return tfp.distributions.kl_divergence(posterior, prior) / 1000.0

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            tfp.layers.Convolution2DFlipout(
                16,
                5,
                padding="same",
                activation="relu",
                kernel_divergence_fn=divergence,
            ),
            layers.MaxPooling2D(),
            layers.Flatten(),
            tfp.layers.DenseFlipout(
                64, activation="relu", kernel_divergence_fn=divergence
            ),
            tfp.layers.DenseFlipout(10, kernel_divergence_fn=divergence),
        ]
    )
    model.compile("adam", LOGITS)
    return model


def tfp_flow() -> Step:
    import tensorflow_probability as tfp

    networks = [
        tfp.bijectors.AutoregressiveNetwork(
            params=2, hidden_units=[128, 128], activation="relu"
        )
        for _ in range(4)
    ]
    flows = [tfp.bijectors.MaskedAutoregressiveFlow(network) for network in networks]
    distribution = tfp.distributions.TransformedDistribution(
        tfp.distributions.MultivariateNormalDiag(tf.zeros(16)),
        tfp.bijectors.Chain(flows),
    )
    points = tf.random.normal((256, 16))
    distribution.log_prob(points)
    variables = [one for network in networks for one in network.trainable_variables]
    return _step_of(
        lambda points: -distribution.log_prob(points),
        variables,
        (points,),
        keras.optimizers.Adam(1e-3),
    )
