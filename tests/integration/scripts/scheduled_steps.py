"""Steps that a coordinator schedules on two workers of a cluster in one process."""

import json
import os
import socket

import tensorflow as tf


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return int(listening.getsockname()[1])


places = {
    "worker": [f"localhost:{free_port()}" for _ in range(2)],
    "ps": [f"localhost:{free_port()}"],
}
cluster = tf.train.ClusterSpec(places)
servers = [
    tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc", start=True)
    for job, tasks in places.items()
    for index in range(len(tasks))
]
os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {**places, "chief": [f"localhost:{free_port()}"]},
        "task": {"type": "chief", "index": 0},
    }
)
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    weights = tf.Variable(tf.ones([64, 64]))
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def worker_step():
    x = tf.ones([32, 64])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.01 * tape.gradient(loss, weights))


for _ in range(30):
    coordinator.schedule(worker_step)
coordinator.join()
print("joined", flush=True)
os._exit(0)
