"""The batch's size is what activations grow with; parameters and optimizer state do not."""

import sys

import keras

STEPS = 12


def model():
    made = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    made.compile("adam", "sparse_categorical_crossentropy")
    return made


if __name__ == "__main__":
    import numpy as np

    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    images = (
        np.random.default_rng(1)
        .normal(size=(STEPS * batch, 32, 32, 3))
        .astype("float32")
    )
    labels = np.zeros((STEPS * batch,), "int32")
    model().fit(images, labels, batch_size=batch, epochs=1, verbose=0)
    print(f"an epoch of {STEPS * batch} images in batches of {batch}")
