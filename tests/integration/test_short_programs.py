"""Programs without many steps: each ends with TensorFlow's own peak, and no need is below it."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child

LAYERS = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.Input((96,)), tf.keras.layers.Dense(256, "relu"),
                             tf.keras.layers.Dense(256)])
"""
PROGRAMS = {
    "predict": LAYERS
    + "import numpy\nmodel.predict(numpy.zeros((8, 96), 'float32'), verbose=0)\n",
    "product": "import sys\nimport tensorflow as tf\na = tf.ones((512, 512))\nb = tf.matmul(a, a)\n",
    "strategy": """
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    weight = tf.Variable(tf.ones((256, 256)))
def train():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.ones((8, 256)) @ weight)
    weight.assign_sub(tape.gradient(loss, weight))
    return loss
step = tf.function(lambda: strategy.run(train))
for _ in range(8):
    step()
""",
    "reset": "import tensorflow as tf\na = tf.ones((1024, 512)) + 1.0\n"
    "tf.config.experimental.reset_memory_stats(DEVICE)\ndel a\n",
}
SESSION = """
import numpy
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_resource_variables()
with v1.Graph().as_default(), v1.Session() as session:
    w = v1.get_variable("w", (256, 512))
    loss = tf.reduce_sum(tf.random.normal((8, 256)) @ w)
    train = v1.train.AdamOptimizer().minimize(loss)
    session.run(v1.global_variables_initializer())
    x, y = v1.placeholder("float32"), v1.placeholder("float32")
    session.run(feed_dict={x: 1.0, y: 2.0}, fetches=x + y)
    for _ in range(12):
        session.run([train, loss])
"""
END = """
print("own", tf.config.experimental.get_memory_info(DEVICE)["peak"])
"""


def run(folder: Path, text: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a program under the command; return its own peak and the report."""
    device = "GPU:0" if "--gpu" in arguments else "CPU:0"
    (folder / "program.py").write_text((text + END).replace("DEVICE", repr(device)))
    words = ("trace", "program.py", "--out", "out", *arguments)
    done = analyze_in_child(*words, cwd=folder)
    own = next(
        int(line.split()[1]) for line in done.out.splitlines() if line[:4] == "own "
    )
    assert "cupti_error_manager" not in done.err
    return own, json.loads((folder / "out" / "report.json").read_text())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=() if one == "product" else pytest.mark.slow)
        for one in PROGRAMS
    ],
)
def test_no_need_is_below_the_allocators_own_peak(tmp_path: Path, name: str) -> None:
    own, report = run(tmp_path, PROGRAMS[name])
    assert report["program"]["own_peak_bytes"] >= own
    assert report["verdict"]["need_bytes"] >= own
    if name != "reset":
        assert report["peak"]["pool_bytes"] >= report["peak"]["allocated_bytes"] > 0
    assert report["integrity"]["damages"] == []
    found = {one["id"] for one in report["findings"]}
    assert not found & {"grows-on-host", "host-growth"}


@pytest.mark.slow
def test_initial_values_are_no_activations(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{LAYERS}raise ValueError")
    analyze_in_child("trace", "program.py", "--out", "out", cwd=tmp_path, code=1)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["categories_at_peak"]["activation"] < 1024


@pytest.mark.slow
def test_the_runs_of_a_session_are_steps(tmp_path: Path) -> None:
    _, report = run(tmp_path, SESSION)
    assert report["program"]["steps"] == 12
    sizes = report["categories_at_peak"]
    assert sizes["optimizer_state"] == 2 * sizes["parameter"] == 2 * 256 * 512 * 4


BUFFERS = {
    "deque": "from collections import deque\nheld = deque(maxlen=400)\nadd = held.append\n",
    "ring": "held = []\ndef add(x):\n    held.append(x)\n    if len(held) > 400:\n"
    "        held.pop(0)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(BUFFERS))
def test_a_bounded_container_that_fills_is_no_leak(tmp_path: Path, name: str) -> None:
    steps = """
optimizer = tf.keras.optimizers.SGD()
for number in range(60):
    batch = tf.random.normal((64, 96))
    add(batch)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
    _, report = run(tmp_path, LAYERS + BUFFERS[name] + steps)
    ids = {one["id"] for one in report["findings"]}
    assert not ids & {
        "kept-tensors",
        "grows",
        "grows-on-host",
        "host-growth",
        "data-held",
    }
    assert "fills" in ids
    assert report["program"]["device"]["trend"] == "fills"
