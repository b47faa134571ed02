import tensorflow as tf

w = tf.Variable(tf.random.normal([64, 64]))


@tf.function
def infer(x):
    return tf.nn.relu(tf.matmul(x, w))


def main():
    acc = tf.zeros([0, 64])
    for k in range(50):
        acc = tf.concat([acc, infer(tf.random.normal([100, 64]))], 0)
    print(acc.shape)


if __name__ == "__main__":
    main()
