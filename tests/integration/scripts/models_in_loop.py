import sys

import keras
import numpy as np

kept = []
for fold in range(6):
    model = keras.Sequential(
        [keras.Input((256,)), keras.layers.Dense(1024), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    size = int(*sys.argv[1:] or "8")
    model.fit(np.ones((64, 256), "f"), np.ones((64, 1), "f"), size, verbose=0)
    kept.append(model)
