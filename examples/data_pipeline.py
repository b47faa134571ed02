"""tf.data: what shuffle, cache and prefetch hold, beside the batch that the step is fed."""

import sys

import tensorflow as tf

ROWS, SIDE, BATCH = 512, 32, 32
ELEMENT_BYTES = SIDE * SIDE * 3 * 4


def dataset(*, shuffles=0, caches=False, prefetches=0):
    """Return a dataset of made-up images; each element is 12 KiB."""

    def image(number):
        seed = tf.stack([number, 0])
        return tf.random.stateless_normal((SIDE, SIDE, 3), seed)

    made = tf.data.Dataset.range(ROWS).map(image)
    made = made.cache() if caches else made
    made = made.shuffle(shuffles) if shuffles else made
    made = made.batch(BATCH, drop_remainder=True)
    return made.prefetch(prefetches) if prefetches else made


def _epoch_of(**stages):
    made = dataset(**stages)

    @tf.function
    def step(batch):
        return tf.reduce_mean(batch)

    def epoch():
        total = 0.0
        for batch in made:
            total += step(batch)
        return total

    return epoch, ()


def plain():
    return _epoch_of()


def shuffled():
    return _epoch_of(shuffles=ROWS)


def cached():
    return _epoch_of(caches=True)


def prefetched():
    return _epoch_of(prefetches=8)


if __name__ == "__main__":
    makers = {maker.__name__: maker for maker in (plain, shuffled, cached, prefetched)}
    for name in sys.argv[1:] or makers:
        function, args = makers[name]()
        print(f"{name}: {float(function(*args)):.4f}")
    sys.exit(0)
