"""The answer of ``analyze fit`` as JSON, text and a page."""

import io
import json
import re
from typing import Any

import pytest
from builders import analyze
from msgspec.structs import replace
from rich.console import Console
from schemas import breaches

from analyzer.cli import fit_command
from analyzer.fitting.fit_answer import CardAnswer, FitAnswer, SizePoint
from analyzer.fitting.fit_document import build_fit_document
from analyzer.model.contract.report_file import StepRemedy, encode_report
from analyzer.model.errors import FailureKind, InputError
from analyzer.report.render.page_shell import to_page
from analyzer.report.render.terminal import print_terminal

MIB = 1 << 20
HOSTILE = "<script>alert(1)</script>\x1b[31m"


ANSWER = FitAnswer(
    target=HOSTILE,
    mode="train",
    jit=False,
    optimizer="Adam",
    dtype_policy="float32",
    card="t4",
    card_name="Tesla T4",
    limit_of="card",
    limit_bytes=100 * MIB,
    limit_low_bytes=90 * MIB,
    limit_high_bytes=110 * MIB,
    by="runs",
    largest=40,
    failing=41,
    safe=36,
    bytes_per_example=MIB,
    wanted=64,
    wanted_fits=False,
    points=(
        SizePoint(size=1, fits=True, need_bytes=4 * MIB),
        SizePoint(size=40, fits=True, need_bytes=98 * MIB),
        SizePoint(size=41, fits=False, kind=FailureKind.OUT_OF_MEMORY, detail=HOSTILE),
    ),
    remedies=(
        StepRemedy(id="a", title=HOSTILE, code="x = 1", saves_bytes=MIB, requested_bytes=2 * MIB),
        StepRemedy(id="b", title="b", code="y = 2", failed=HOSTILE),
    ),
    headline="Batch 40 is the largest that fits.",
)  # fmt: skip


def to_text(answer: FitAnswer, width: int = 120) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, no_color=True)
    print_terminal(build_fit_document(answer), console)
    return " ".join(stream.getvalue().split())


def to_html(answer: FitAnswer) -> str:
    return to_page(build_fit_document(answer))


def test_an_error_at_one_kind_of_card_keeps_the_answer_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*arguments: Any) -> None:
        arguments[-1](ANSWER)
        raise InputError("XLA cannot compile the step.")

    monkeypatch.setattr(fit_command, "fit_all_cards", stop)
    done = analyze("fit", "keras:VGG16", "--gpu", "all")
    assert (done.code, done.out.splitlines()[0]) == (2, ANSWER.headline)


def test_the_json_keeps_to_the_schema() -> None:
    assert breaches(json.loads(encode_report(ANSWER)), "fit", "FitAnswer") == []


def test_one_size_of_the_card_and_the_parts_of_it() -> None:
    text = to_text(replace(ANSWER, beside_pool_bytes=20 * MIB))
    assert "Of the 120.0 MiB that a process may use on Tesla T4" in text
    assert "libraries take 20.00 MiB" in text
    assert "100.0 MiB" not in text
    given = to_text(replace(ANSWER, limit_of="given"))
    assert "limit of 100.0 MiB is for TensorFlow's pool alone" in given
    assert "3 % or more below the lowest" in to_text(replace(ANSWER, failing=None))


def test_page_and_terminal_show_names_as_text() -> None:
    assert "\x1b" not in to_text(ANSWER, 40)
    page = to_html(ANSWER)
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src &#39;none&#39;" in policy[1]


CARD = CardAnswer(
    id="t4",
    memory_bytes=MIB,
    limit_bytes=MIB,
    largest=70,
    safe=64,
    holds_wanted=None,
)


def test_priced_cards_come_before_the_sizes() -> None:
    card = replace(CARD, price=0.355, holds_wanted=True, beside_pool_bytes=2 * MIB)
    priced = replace(ANSWER, limit_of="cards", card="", cards=(card,))
    for width in (60, 80, 160):
        text = to_text(priced, width)
        assert "0.355" in text
        assert "3.00 MiB" in text  # what a process may use
        assert text.index("per hour") < text.index("Runs by batch size")
        assert "--gpu t4" in text.partition("Next: ")[2]


def test_cards_that_hold_the_batch_come_first() -> None:
    small = replace(CARD, id="a-small-card", holds_wanted=False)
    large = replace(CARD, id="z-large-card", holds_wanted=True)
    shown = to_text(replace(ANSWER, limit_of="cards", cards=(small, large)))
    assert shown.index("z-large-card") < shown.index("a-small-card")


def test_cards_with_the_same_answer_share_a_row() -> None:
    names = ("rtx-3070-ti-laptop", "rtx-4060-ti-8gb", "v100s-32gb-pcie")
    cards = [replace(CARD, id=name) for name in names]
    cards.append(replace(CARD, largest=71))
    answer = replace(ANSWER, limit_of="cards", wanted=None, cards=tuple(cards))
    for width in (60, 80, 160):
        text = to_text(answer, width)
        assert all(name in text for name in names)
        assert text.count("64 70") == 1
        assert "64 71" in text


def test_an_answer_without_sizes_is_shown() -> None:
    bare = replace(ANSWER, points=(), remedies=(), largest=0, safe=0)
    assert "Batch 40 is the largest" in to_text(bare)
