"""Trains on batches of a ``PyDataset`` that workers put into a queue."""

import keras
import numpy as np


class Feed(keras.utils.PyDataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full((16, 200, 200, 3), index, "float32"), np.zeros(
            (16, 1), "float32"
        )


layers = [keras.Input((200, 200, 3)), keras.layers.GlobalAveragePooling2D()]
model = keras.Sequential([*layers, keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
model.fit(Feed(workers=2, max_queue_size=8), verbose=0)
