"""Steps that XLA compiles, as a whole or in part."""

import keras  # noqa: TID253
import tensorflow as tf  # noqa: TID253


def _model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(512, "relu"),
            keras.layers.Dense(512, "relu"),
            keras.layers.Dense(8),
        ]
    )


def whole():
    """One compiled function that trains with Adam."""
    model = _model()
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def step(features, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features, training=True) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    step.model, step.optimizer = model, optimizer
    return step, (tf.random.normal([128, 64]), tf.random.normal([128, 8]))


def of_any_batch():
    """One compiled function whose signature leaves the batch open."""
    step, _ = whole()
    signature = [tf.TensorSpec([None, 64]), tf.TensorSpec([None, 8])]
    return tf.function(
        step.python_function, input_signature=signature, jit_compile=True
    )


def partly():
    """A step that runs op by op, with a compiled function and its gradient in it."""

    @tf.function(jit_compile=True)
    def inner(values):
        return tf.transpose(tf.nn.gelu(values) * tf.sigmoid(values))

    weight = tf.Variable(tf.ones([512, 512]), name="weight")

    @tf.function
    def step(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner(tf.matmul(features, weight)))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return step, (tf.ones([1024, 512]),)
