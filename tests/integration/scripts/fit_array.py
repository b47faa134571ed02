"""Trains a recurrent layer on two arrays that ``fit`` copies whole; prints its largest memory.

Its model can be deleted, as without ``analyze``.
"""

import re
import weakref
from pathlib import Path

import keras
import numpy as np

bytes_read = np.zeros((8000, 8, 200), "uint8")
x_train = bytes_read / np.float32(255)
z_train = x_train + 1
y_train = np.zeros((8000, 1), "float32")
inputs = [keras.Input((8, 200)), keras.Input((8, 200))]
model = keras.Model(inputs, keras.layers.LSTM(1)(keras.layers.add(inputs)))
model.compile("sgd", "mse", jit_compile=False)
model.fit([x_train, z_train], y_train, batch_size=400, verbose=0)

kernel = weakref.ref(model.weights[0])
del model, inputs
keras.utils.clear_session()
assert kernel() is None

status = Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024)
