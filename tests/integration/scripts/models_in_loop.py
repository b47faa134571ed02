import keras
import numpy as np

kept = []
for fold in range(6):
    model = keras.Sequential(
        [keras.Input((256,)), keras.layers.Dense(1024), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    model.fit(np.ones((64, 256), "f"), np.ones((64, 1), "f"), batch_size=8, verbose=0)
    kept.append(model)
