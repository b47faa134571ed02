"""Generation of tokens with a KV cache, and presets of keras-hub, against TensorFlow's own trace."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child

TARGET = Path(__file__).parent / "targets" / "generation.py"
BATCH, TOKENS, WIDTH = 4, 128, 32
CACHE_BYTES = BATCH * 2 * TOKENS * WIDTH * 4
PRESET = {
    "module": "keras_hub.src.models.gpt2.gpt2_backbone",
    "class_name": "GPT2Backbone",
    "registered_name": "keras_hub>GPT2Backbone",
    "config": {
        "vocabulary_size": 300,
        "num_layers": 2,
        "num_heads": 2,
        "hidden_dim": 32,
        "intermediate_dim": 64,
        "max_sequence_length": 256,
    },
}


def report(folder: Path, command: str, target: str, *options: str) -> dict[str, Any]:
    arguments = (
        command,
        target,
        "--batch-size",
        str(BATCH),
        *options,
        "--out",
        command,
    )
    analyze_in_child(*arguments, "--force", cwd=folder)
    document: dict[str, Any] = json.loads(
        (folder / command / "report.json").read_text()
    )
    return document


@pytest.mark.slow
def test_generated_tokens_need_what_tensorflow_allocates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(TARGET, tmp_path)
    # On several threads the peak depends on the ops that overlap.
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    options = ("--mode", "generate", "--shape", str(TOKENS), "--no-jit")
    found, real = (
        report(tmp_path, command, "generation.py:speaker", *options)
        for command in ("estimate", "trace")
    )
    assert found["step"]["mode"] == "generate"
    assert found["step"]["options"][:2] == ["--shape", str(TOKENS)]
    bounds = found["uncertainty"]
    assert (
        bounds["low_bytes"] <= real["peak"]["requested_bytes"] <= bounds["high_bytes"]
    )
    for one in (found, real):
        # The cache, and a part of it with the keys or values of a new token.
        assert one["categories_at_peak"]["kv_cache"] >= CACHE_BYTES * 3 // 2


def write_preset(folder: Path) -> str:
    (folder / "preset").mkdir()
    (folder / "preset" / "config.json").write_text(json.dumps(PRESET))
    return f"hub:{folder / 'preset'}"


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("keras_hub"), reason="keras-hub is not installed"
)
def test_preset_without_weights_needs_what_tensorflow_allocates(tmp_path: Path) -> None:
    target = write_preset(tmp_path)
    found, real = (
        report(tmp_path, one, target, "--shape", "64") for one in ("estimate", "trace")
    )
    bounds = found["uncertainty"]
    assert (
        bounds["low_bytes"] <= real["peak"]["requested_bytes"] <= bounds["high_bytes"]
    )
    for category in ("parameter", "optimizer_state"):
        assert (
            found["categories_at_peak"][category]
            == real["categories_at_peak"][category]
        )


@pytest.mark.slow  # the extra for tests lacks keras-hub
@pytest.mark.skipif(
    not importlib.util.find_spec("keras_hub"), reason="keras-hub is not installed"
)
@pytest.mark.parametrize(
    ("preset", "expected"),
    [("gemma_2b", "Did you mean gemma_2b_en?"), ("folder", "has no config.json")],
)
def test_presets_that_cannot_be_built(
    tmp_path: Path, preset: str, expected: str
) -> None:
    (tmp_path / "folder").mkdir()
    ended = analyze_in_child("estimate", f"hub:{preset}", cwd=tmp_path, code=2)
    assert expected in ended.err
    assert ended.complaint.count("\n") == 1
