"""``analyze device`` on cards that are not there: NVML's interface and the allocator are real."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child, run_python
from simulated_cards import NEEDS_CARDS

from analyzer.cards.catalogue import find_gpu, memory_limit
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.machine import cache_folder
from analyzer.simulated_card.card_environment import make_card_environment

pytestmark = NEEDS_CARDS
MIB = 1 << 20
CONTEXT = 320 * MIB
OTHERS = 1024 * MIB
HEAD = "import json, tensorflow as tf, analyzer\ncards = tf.config.list_physical_devices('GPU')\n"
TAIL = (
    "x = tf.Variable(tf.ones([1000, 1000]))\ny = tf.linalg.matmul(x, x)\n"
    "told = analyzer.device()\n"
    "print(json.dumps([told.document, tf.config.experimental.get_memory_info('GPU:0'), str(told)]))\n"
)


@pytest.fixture(scope="module")
def cache() -> Path:
    """Return the folder in which all tests keep the card's library."""
    folder = cache_folder()
    assert folder is not None
    return folder


def environment(cache: Path, gpu: str = "t4", **more: str) -> dict[str, str]:
    cards = CaptureOptions(gpu=gpu, assume={"context": CONTEXT + OTHERS})
    own = {
        "SIMULATED_CARD_NEIGHBOURS": f"{os.getppid()}:{OTHERS}",
        **more,
    }
    return {**os.environ, **make_card_environment(cards, cache), **own}


def read_inside(
    cache: Path, set_up: str = "", **more: str
) -> tuple[dict[str, Any], ...]:
    ended = run_python("-c", HEAD + set_up + TAIL, **environment(cache, **more))
    assert ended.returncode == 0, ended.stderr
    return tuple(json.loads(ended.stdout.splitlines()[-1]))


def rows_of(card: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of each part; other processes have one name."""
    rows = {}
    for row in card["rows"]:
        is_process = row["what"].startswith("process ")
        rows["process" if is_process else row["what"]] = row["size_bytes"]

    return rows


TENSORS = "in use by tensors"
POOL = "in TensorFlow's pool, not in use"
OUTSIDE = "outside the pool: CUDA context, libraries, kernels"


def test_each_difference_has_its_row_and_all_add_up_to_the_card(cache: Path) -> None:
    told, memory, text = read_inside(cache)
    (card,) = told["cards"]
    rows = rows_of(card)
    limit = memory_limit(find_gpu("t4")).bytes - OTHERS
    assert rows[TENSORS] == memory["current"]
    pool = -(-limit // (2 * MIB)) * 2 * MIB  # the driver hands out pages of 2 MiB
    assert rows[POOL] == limit - memory["current"]
    assert rows[OUTSIDE] == pool + CONTEXT - limit
    assert rows["process"] == OTHERS
    assert sum(rows.values()) == card["total_bytes"]
    assert "the pool takes it at its first tensor" in " ".join(text.split())


def test_a_growing_pool_and_the_context_are_one_part(cache: Path) -> None:
    told, memory, text = read_inside(cache, TF_FORCE_GPU_ALLOW_GROWTH="true")
    (card,) = told["cards"]
    rows = rows_of(card)
    assert rows[f"in TensorFlow's pool, which grows, and {OUTSIDE}"] > CONTEXT
    assert sum(rows.values()) == card["total_bytes"]
    assert rows[TENSORS] == memory["current"]
    assert "grows on demand" in text


@pytest.mark.slow
def test_two_devices_on_one_card_are_one_account(cache: Path) -> None:
    set_up = (
        "part = tf.config.LogicalDeviceConfiguration\n"
        "tf.config.set_logical_device_configuration(cards[0], [part(512), part(256)])\n"
    )
    told, memory, _ = read_inside(cache, set_up)
    rows = rows_of(told["cards"][0])
    assert rows[POOL] == 512 * MIB - memory["current"]
    assert sum(rows.values()) == told["cards"][0]["total_bytes"]


def test_the_command_reads_the_driver_alone(cache: Path, tmp_path: Path) -> None:
    env = environment(cache)
    changed = {
        name: value for name, value in env.items() if os.environ.get(name) != value
    }
    path = tmp_path / "device.json"
    analyze_in_child("device", "--json", str(path), cwd=tmp_path, **changed)
    (card,) = json.loads(path.read_text())["cards"]
    assert rows_of(card) == {
        "process": OTHERS,
        "free": card["total_bytes"] - OTHERS,
    }
