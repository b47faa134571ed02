"""Programs without many steps: each ends with TensorFlow's own peak, and no need is below it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import COMMAND

pytestmark = pytest.mark.tf

LAYERS = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.Input((96,)), tf.keras.layers.Dense(256, "relu"),
                             tf.keras.layers.Dense(256)])
"""
ACCUMULATION = """
optimizer = tf.keras.optimizers.Adam()
total = [tf.zeros_like(v) for v in model.trainable_variables]
for number in range(14):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(tf.random.normal((64, 96))) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    total = [a + g for a, g in zip(total, gradients)]
    if number % 4 == 3:
        optimizer.apply_gradients(zip(total, model.trainable_variables))
        total = [tf.zeros_like(v) for v in model.trainable_variables]
held = tf.zeros((1024, 2048))
"""
PROGRAMS = {
    "accumulation": LAYERS + ACCUMULATION,
    "predict": LAYERS + "import numpy\nmodel.predict(numpy.zeros((8, 96), 'float32'), verbose=0)\n",
    "product": "import sys\nimport tensorflow as tf\na = tf.ones((512, 512))\nb = tf.matmul(a, a)\n",
    "outputs": LAYERS + "kept = [model(tf.ones((64, 96))) for _ in range(40)]\n",
    "reset": "import tensorflow as tf\na = tf.ones((1024, 512)) + 1.0\n"
    "tf.config.experimental.reset_memory_stats(DEVICE)\ndel a\n",
}
END = """
print("own", tf.config.experimental.get_memory_info(DEVICE)["peak"])
"""


def run(folder: Path, text: str, *arguments: str, status: int = 0) -> tuple[int, dict[str, Any]]:
    """Run a program under the command; return its own peak and the report."""
    device = "GPU:0" if "--gpu" in arguments else "CPU:0"
    (folder / "program.py").write_text((text + END).replace("DEVICE", repr(device)))
    done = subprocess.run(
        [sys.executable, str(COMMAND), "trace", "program.py", "--out", "out", *arguments],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stderr
    own = next(int(line.split()[1]) for line in done.stdout.splitlines() if line[:4] == "own ")
    assert "cupti_error_manager" not in done.stderr
    return own, json.loads((folder / "out" / "report.json").read_text())


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one == "product" else pytest.mark.slow) for one in PROGRAMS],
)
def test_no_need_is_below_the_allocators_own_peak(tmp_path: Path, name: str) -> None:
    own, report = run(tmp_path, PROGRAMS[name])
    assert report["program"]["own_peak_bytes"] >= own
    assert report["verdict"]["need_bytes"] >= own
    if name != "reset":
        assert report["peak"]["pool_bytes"] >= report["peak"]["allocated_bytes"] > 0
    assert report["integrity"]["damages"] == []
    assert "grows-on-host" not in {one["id"] for one in report["findings"]}
    need = report["verdict"]["need"]
    assert need["own_peak_bytes"] == report["program"]["own_peak_bytes"]
    assert report["verdict"]["headline"].startswith("TensorFlow's own peak is ")


@pytest.mark.slow
def test_micro_batches_are_steps_and_their_sums_are_accumulators(tmp_path: Path) -> None:
    own, report = run(tmp_path, PROGRAMS["accumulation"], "--gpu", "t4")
    program = report["program"]
    assert program["own_peak_bytes"] == own <= report["verdict"]["need_bytes"]
    assert program["micro_batches"] == 4
    assert program["steps"] == 14
    sums = [row for row in report["tensors_at_peak"] if "accumulator" in row["role"]]
    assert sum(row["requested_bytes"] for row in sums) >= 4 * 96 * 256


INTERRUPTED = (
    LAYERS
    + """
import os, signal, sys
times = int(sys.argv[1])
model.compile("sgd", "mse")
class Interrupt(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 20:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
x = tf.zeros((64, 96))
model.fit(x, tf.zeros((64, 256)), batch_size=1, verbose=0, callbacks=[Interrupt()])
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_after_the_traced_steps_keeps_the_trace(tmp_path: Path, times: int) -> None:
    (tmp_path / "program.py").write_text(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, str(COMMAND), "trace", "program.py", "--out", "out", "--", str(times)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.count("Traceback") == 1  # the script's own
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(report["steps"]) == 5
    assert report["program"]["ended"] == "KeyboardInterrupt"


BUFFERS = {
    "deque": "from collections import deque\nheld = deque(maxlen=400)\nadd = held.append\n",
    "ring": "held = []\ndef add(x):\n    held.append(x)\n    if len(held) > 400:\n"
    "        held.pop(0)\n",
    "cache": "import functools\n@functools.lru_cache(maxsize=400)\n"
    "def make(i):\n    return tf.zeros((64, 96)) + float(i)\ndef add(x):\n    make(number)\n",
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
    assert not ids & {"kept-tensors", "grows", "grows-on-host", "data-held"}
    assert "fills" in ids
    assert report["program"]["device"]["trend"] == "fills"


@pytest.mark.slow
def test_a_script_that_needs_a_gpu_gets_the_command_with_a_simulated_card(tmp_path: Path) -> None:
    code = "import tensorflow as tf\ngpu = tf.config.list_physical_devices('GPU')[0]\n"
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(COMMAND), "trace", "program.py", "--no-save"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "analyze trace program.py --gpu t4" in done.stderr


@pytest.mark.slow
def test_nvidia_smi_shows_the_simulated_card(tmp_path: Path) -> None:
    text = """
import subprocess
import tensorflow as tf
tf.config.experimental.set_memory_growth(tf.config.list_physical_devices("GPU")[0], True)
a = tf.zeros((8192, 8192))
query = ["nvidia-smi", "--query-gpu=memory.used,name", "--format=csv,noheader,nounits"]
used, name = subprocess.check_output(query, text=True).split(",")
assert int(used) >= 256, used
assert name.strip() == "Tesla T4", name
"""
    run(tmp_path, text, "--gpu", "t4")


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "fits"), [("31MiB", False), ("33MiB", True)])
def test_a_card_fails_below_the_stated_need(tmp_path: Path, limit: str, fits: bool) -> None:
    """A pool below twice the block hands it out whole: not even a scalar fits beside it."""
    text = "import tensorflow as tf\nblock = tf.zeros((1 << 22,))\ntf.constant(1.0)\n"
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, str(COMMAND), "trace", "program.py", "--gpu", "t4"]
    done = subprocess.run(
        [*command, "--limit", limit, "--no-save", "--json", "out.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = json.loads((tmp_path / "out.json").read_text())
    assert (done.returncode == 0) is fits, done.stderr
    assert report["fits"] is fits
    if fits:
        assert 31 << 20 < report["verdict"]["need_bytes"] <= 33 << 20


PARTS = """
class Block(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(8)
    def call(self, x):
        return self.dense(x)
class Network(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = tf.keras.Sequential([self.make_block() for _ in range(6)])
    def make_block(self):
        return Block()
    def call(self, x):
        return self.blocks(x)
network = Network()
network(tf.ones((4, 8)))
"""
FAILS = """
weight = tf.Variable(tf.ones((512, 256)))
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.sigmoid(tf.ones((2048, 512)) @ weight))
print("own", tf.config.experimental.get_memory_info("CPU:0")["peak"])
raise TypeError("before the gradient")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "status"), [(PARTS, 0), (FAILS, 1)])
def test_parts_of_a_model_and_a_tape_of_an_error_are_no_leak(
    tmp_path: Path, text: str, status: int
) -> None:
    _, report = run(tmp_path, "import tensorflow as tf\n" + text, status=status)
    ids = {one["id"] for one in report["findings"]}
    assert not ids & {"models-kept", "models-made-anew", "tape-outlives-use"}
