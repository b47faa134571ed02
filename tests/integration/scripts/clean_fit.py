import keras
import numpy as np

x = np.random.rand(1030, 28, 28, 1).astype("f")
y = np.random.randint(0, 10, 1030)
model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
model.fit(x, y, batch_size=32, epochs=3, validation_split=0.1, verbose=2)
print(model.evaluate(x, y, verbose=0))
model.predict(x[:100], verbose=0)
