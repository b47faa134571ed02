"""The user's table of prices."""

from pathlib import Path

import pytest
from builders import refusal

from analyzer.cards.catalogue import find_gpu, read_prices
from analyzer.model.errors import InputError

TABLES = {
    "plain.csv": "t4,0.35\nTesla V100-SXM2-16GB,2.48\n",
    "headed.csv": "\ufeffcard,price,region\r\n\r\nT4, 0.35 ,west\r\nv100-16gb,2.48,east\r\nt4,0.5,x\r\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_cards_are_found_by_any_name_and_the_lowest_price_counts(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(TABLES[name], "utf-8")
    prices = read_prices(tmp_path / name)
    assert prices == {find_gpu("t4"): 0.35, find_gpu("v100-16gb"): 2.48}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t4,cheap\n", "'t4,cheap' has no price"),
        ("t4,nan\n", "'t4,nan' has no price"),
        ("t4\n", "'t4' has no price"),
        ("", "holds no card"),
        ("gtx-nothing-4711,1\n", "No card is called 'gtx-nothing-4711'"),
    ],
)
def test_a_malformed_table_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    table = tmp_path / "a.csv"
    table.write_text(text)
    with pytest.raises(InputError, match=words) as raised:
        read_prices(table)
    assert raised.value.hint
    assert table.name in raised.value.message


def test_prices_need_all_cards_and_a_file(tmp_path: Path) -> None:
    fit = ("fit", "keras:MobileNetV2", "--prices", str(tmp_path / "none.csv"))
    for options, words in (
        ("t4", "--prices needs --gpu all"),
        ("all", "No such file"),
    ):
        assert words in refusal(*fit, "--gpu", options)
