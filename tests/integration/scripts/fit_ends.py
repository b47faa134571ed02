"""Ends in the way that its argument names, after 12 steps."""

import os
import sys

import keras
import numpy as np

model = keras.Sequential(
    [keras.Input((16,)), keras.layers.Dense(32), keras.layers.Dense(1)]
)
model.compile("adam", "mse")
print(sys.stdin.readline().strip())
model.fit(np.ones((96, 16), "f"), np.ones((96, 1), "f"), batch_size=8, verbose=0)
print("trained")
if sys.argv[1] == "fork":
    if os.fork() == 0:
        os._exit(3)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
elif sys.argv[1] == "crash":
    raise RuntimeError("my own")
elif sys.argv[1] == "leave":
    os._exit(9)
elif sys.argv[1].isdecimal():
    os.kill(os.getpid(), int(sys.argv[1]))
    model.predict(np.ones((8, 16), "f"))
