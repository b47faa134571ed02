"""The catalogue: names, and that every row can be traced and used."""

import csv
from importlib.resources import files

import pytest

from analyzer.cards.catalogue import all_gpus, find_gpu, gpus_named
from analyzer.model.errors import InputError


@pytest.mark.parametrize(
    ("asked", "id_"),
    [
        ("t4", "t4"),
        ("Tesla T4", "t4"),
        ("T4 16GB", "t4"),
        ("rtx 4090 24g", "rtx-4090"),
        ("A100-80GB", "a100-80gb-sxm"),
        ("a100 80g pcie", "a100-80gb-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("h100", "h100-80gb-sxm"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("rtx 4090 mobile", "rtx-4090-laptop"),
        ("rtx 4070ti", "rtx-4070-ti"),
        ("rtx-4070", "rtx-4070"),
        ("4060ti 16gb", "rtx-4060-ti-16gb"),
        ("rtx 6000", "quadro-rtx-6000"),
        ("rtx 6000 ada", "rtx-6000-ada"),
        ("a6000", "rtx-a6000"),
        ("  L40S ", "l40s"),
        # As TensorFlow-ROCm prints them.
        ("AMD Instinct MI250X/MI250", "mi250x"),
        ("Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("rx7900xtx", "rx-7900-xtx"),
        ("7900 gre", "rx-7900-gre"),
    ],
)
def test_a_name_finds_its_card(asked: str, id_: str) -> None:
    assert find_gpu(asked).id == id_


def test_an_ambiguous_name_means_the_least_memory() -> None:
    cards = gpus_named("a100")
    assert {card.id for card in cards} >= {"a100-40gb-sxm", "a100-80gb-sxm"}
    assert cards[0].nominal_bytes == min(card.nominal_bytes for card in cards)
    assert find_gpu("a100") is cards[0]


@pytest.mark.parametrize("asked", ["rtx4091", "foo", "", "mi999", "a\nb", "☃" * 2000])
def test_an_unknown_name_is_one_line_and_bad_input(asked: str) -> None:
    with pytest.raises(InputError) as caught:
        find_gpu(asked)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_every_row_is_whole_and_has_its_source() -> None:
    text = (files("analyzer.cards") / "sources.csv").read_text(encoding="utf-8")
    sources = {row["key"] for row in csv.DictReader(text.splitlines())}
    cards = all_gpus()
    assert len({card.id for card in cards}) == len(cards)
    for card in cards:
        assert card.fp32_lanes > 0, card.id
        assert card.sm_count > 0, card.id
        assert card.clock_mhz > 500, card.id
        assert card.bandwidth_bytes_s > 50e9, card.id
        assert 0.75 < card.memory_bytes / card.nominal_bytes <= 1.07, card.id
        keys = [card.specs_source, *filter(None, [card.memory_source])]
        for key in ";".join(keys).split(";"):
            assert key.partition(":")[0] in sources, card.id


def test_every_card_is_found_by_its_id_and_its_name() -> None:
    for card in all_gpus():
        assert find_gpu(card.id) is card
        assert card in gpus_named(card.name)
