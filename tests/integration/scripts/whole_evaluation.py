import keras
import numpy as np

layers = keras.layers
x, y = np.zeros((4_000, 512), "float32"), np.zeros((4_000, 10), "float32")
model = keras.Sequential(
    [keras.Input((512,)), layers.Dense(2048, activation="relu"), layers.Dense(10)]
)
model.compile("sgd", "mse")
model.fit(x[:1280], y[:1280], verbose=0)
model.evaluate(x, y, batch_size=len(x), verbose=0)
