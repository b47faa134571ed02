"""What a child that sees simulated cards is told, and who is refused."""

from __future__ import annotations

import platform
import sys

import pytest

from analyzer.capture.process import child_environment
from analyzer.capture.targets.target_spec import parse_card_assumptions
from analyzer.cards import find_gpu, memory_limit
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import InputError
from analyzer.simulated_card import card_environment as environment
from analyzer.simulated_card.card_environment import (
    SimulatedCardOptions,
    make_card_environment,
    parse_cards,
)

ONLY_LINUX = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="Linux on x86-64"
)


@pytest.mark.parametrize(
    ("text", "ids"), [("t4", ["t4"]), ("t4,l4", ["t4", "l4"]), ("2xT4", ["t4", "t4"])]
)
def test_cards_are_named_one_by_one_or_with_a_number(text, ids):
    assert [card.id for card in parse_cards(text)] == [
        find_gpu(name).id for name in ids
    ]


@pytest.mark.parametrize("text", ["no-such-card", "17xt4", "0xt4", "", "t4,mi210"])
def test_what_names_no_card_is_refused_in_one_line(text):
    with pytest.raises(InputError):
        parse_cards(text)


@ONLY_LINUX
def test_the_catalogues_figures_go_to_the_child_and_the_users_own_path_stays(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(environment, "make_library_folder", lambda cache: cache / "lib")
    card = find_gpu("t4")
    own = {
        "LD_LIBRARY_PATH": "/theirs",
        "XLA_FLAGS": "--xla_theirs",
        "PATH": "/usr/bin",
    }
    told = make_card_environment(SimulatedCardOptions(gpus=(card, card)), tmp_path, own)
    assert told["LD_LIBRARY_PATH"].split(":") == [
        str(tmp_path / "simulated_card" / "lib"),
        "/theirs",
    ]
    toolkit = tmp_path / "simulated_card/lib/cuda"
    assert told["XLA_FLAGS"] == f"--xla_theirs --xla_gpu_cuda_data_dir={toolkit}"
    assert told["PATH"].split(":") == [f"{toolkit}/bin", "/usr/bin"]
    assert told["CUDA_VISIBLE_DEVICES"] == "0,1"
    first, second = told["SIMULATED_CARDS"].split(";")
    assert first == second
    figures = first.split(",")
    assert figures[:4] == [card.name, "7", "5", str(card.sm_count)]
    total, held = int(figures[-2]), int(figures[-1])
    reserve = 1050 << 20  # TensorFlow's own, for this architecture
    assert total - held - reserve == memory_limit(card).bytes


@ONLY_LINUX
def test_a_bandwidth_is_what_the_clock_and_the_width_give(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "make_library_folder", lambda cache: cache)
    card = find_gpu("a100-80gb")
    told = make_card_environment(SimulatedCardOptions(gpus=(card,)), tmp_path, {})
    figures = told["SIMULATED_CARDS"].split(",")
    khz, bits = int(figures[5]), int(figures[6])
    assert 2 * khz * 1000 * bits / 8 == pytest.approx(card.bandwidth_bytes_s, rel=1e-4)


@ONLY_LINUX
def test_a_tensorflow_without_cuda_has_no_simulated_card(tmp_path, monkeypatch):
    def refuse(cache):
        raise InputError("built without CUDA")

    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", str(tmp_path))
    monkeypatch.setattr(environment, "make_library_folder", lambda cache: cache)
    assert environment.has_simulated_card()
    monkeypatch.setattr(environment, "make_library_folder", refuse)
    assert not environment.has_simulated_card()


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")]
)
def test_another_machine_is_told_what_remains(monkeypatch, tmp_path, system, machine):
    monkeypatch.setattr(environment.sys, "platform", system)
    monkeypatch.setattr(environment.platform, "machine", lambda: machine)
    with pytest.raises(InputError) as caught:
        make_card_environment(
            SimulatedCardOptions(gpus=(find_gpu("t4"),)), tmp_path, {}
        )
    assert "Linux on x86-64" in caught.value.message
    assert "estimate" in caught.value.hint


def test_what_is_assumed_is_a_setting_of_the_child_and_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(
        environment,
        "make_card_environment",
        lambda *args: {"told": args[0], "PATH": ""},
    )
    assume = parse_card_assumptions(
        ["workspace=4MiB", "recurrent-reserve=8", "context=0"]
    )
    assert assume == {"workspace": 4 << 20, "recurrent-reserve": 8, "context": 0}
    options = CaptureOptions(gpu="t4", assume=assume)
    told = child_environment.make_card_environment(options, tmp_path)["told"]
    assert (told.workspace_bytes, told.recurrent_reserve, told.context_bytes) == (
        4 << 20,
        8,
        0,
    )
    assert (told.product_workspace_bytes, told.batch_norm_reserve_bytes) == (0, 0)
    assert child_environment.make_card_note(options).assumed == assume


@pytest.mark.parametrize(
    "text",
    [
        "workspace",
        "=4MiB",
        "nothing=4",
        "workspace=9GiB",
        "recurrent-reserve=8MiB",
        "context=-1",
    ],
)
def test_what_assumes_nothing_of_a_card_is_refused_in_one_line(text):
    with pytest.raises(InputError):
        parse_card_assumptions([text])
