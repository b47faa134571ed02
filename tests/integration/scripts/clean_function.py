import keras
import tensorflow as tf

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(10),
    ]
)
opt = keras.optimizers.Adam()
data = (
    tf.data.Dataset.from_tensor_slices(
        (tf.random.normal((2000, 64)), tf.random.normal((2000, 10)))
    )
    .shuffle(500)
    .batch(64)
    .prefetch(2)
)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    opt.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


for epoch in range(3):
    total = 0.0
    for x, y in data:
        total += float(train_step(x, y))
    print(epoch, total)
