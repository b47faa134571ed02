"""Every call adds an array to a list, and some calls trace the function again."""

import tensorflow as tf

log = []
f = tf.function(lambda x, n: x * n)
for i in range(60):
    log.append(f(tf.ones([64]), i % 20).numpy().repeat(1000))
