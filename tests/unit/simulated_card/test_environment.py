"""What a child that sees simulated cards is told, and who is refused."""

import pytest

from analyzer.capture.targets.target_spec import parse_card_assumptions
from analyzer.cards.catalogue import find_gpu
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.errors import InputError
from analyzer.simulated_card import card_environment as environment
from analyzer.simulated_card.card_environment import (
    make_card_environment,
    parse_cards,
)


@pytest.mark.parametrize(
    ("text", "ids"), [("t4", ["t4"]), ("t4,l4", ["t4", "l4"]), ("2xT4", ["t4", "t4"])]
)
def test_cards_are_named_one_by_one_or_with_a_number(text, ids):
    assert [card.id for card in parse_cards(text)] == [
        find_gpu(name).id for name in ids
    ]


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")]
)
def test_another_machine_is_told_what_remains(monkeypatch, tmp_path, system, machine):
    monkeypatch.setattr(environment.sys, "platform", system)
    monkeypatch.setattr(environment.platform, "machine", lambda: machine)
    with pytest.raises(InputError) as caught:
        make_card_environment(CaptureOptions(gpu="t4"), tmp_path)
    assert "Linux on x86-64" in caught.value.message
    assert "estimate" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        *("no-such-card", "17xt4", "0xt4", "", "t4,mi210"),
        "workspace",
        "=4MiB",
        "nothing=4",
        "workspace=9GiB",
        "recurrent-reserve=8MiB",
        "context=-1",
    ],
)
def test_what_is_no_card_and_no_assumption_is_refused_in_one_line(text):
    for parse, given in ((parse_cards, text), (parse_card_assumptions, [text])):
        with pytest.raises(InputError):
            parse(given)
