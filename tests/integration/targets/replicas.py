"""A step on two virtual CPU devices, made by hand."""

from typing import Any


def make_step() -> tuple[Any, tuple[Any, ...]]:
    import tensorflow as tf

    cpus = tf.config.list_physical_devices("CPU")
    part = tf.config.LogicalDeviceConfiguration
    tf.config.set_logical_device_configuration(cpus[0], [part(), part()])
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        kernel = tf.Variable(tf.zeros((512, 1024)), name="kernel")
        optimizer = tf.keras.optimizers.SGD(momentum=0.9)
        optimizer.build([kernel])

    def replica(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.relu(x @ kernel) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
        return loss

    @tf.function
    def step(x: Any) -> Any:
        return strategy.reduce("sum", strategy.run(replica, args=(x,)), axis=None)

    return step, (tf.zeros((64, 512)),)
