"""The answer of ``analyze fit`` as JSON, text and a page."""

from __future__ import annotations

import io
import json
import re

import msgspec
from msgspec.structs import replace
from rich.console import Console
from schemas import breaches

from analyzer.fitting.fit_answer import (
    CardAnswer,
    Confirmation,
    ConfirmingRun,
    CurvePoint,
    FitAnswer,
    SizeFailure,
)
from analyzer.fitting.fit_document import build_fit_document
from analyzer.model.contract.report.subject import StepRemedy
from analyzer.model.contract.report.writing import encode_report
from analyzer.model.errors import FailureKind
from analyzer.report.render.page_shell import to_page
from analyzer.report.render.terminal import print_terminal

MIB = 1 << 20
HOSTILE = "<script>alert(1)</script>\x1b[31m"


def make_point(size: int) -> CurvePoint:
    return CurvePoint(
        size=size,
        requested_bytes=2 * size * MIB,
        allocated_bytes=3 * size * MIB,
        need_bytes=4 * size * MIB,
        need_low_bytes=3 * size * MIB,
        need_high_bytes=5 * size * MIB,
        op=HOSTILE,
    )


ANSWER = FitAnswer(
    target=HOSTILE,
    varied="batch size",
    mode="train",
    jit=False,
    optimizer="Adam",
    dtype_policy="float32",
    device="gpu",
    card="t4",
    card_name="Tesla T4",
    limit_of="card",
    limit_bytes=100 * MIB,
    limit_low_bytes=90 * MIB,
    limit_high_bytes=110 * MIB,
    largest=40,
    failing=41,
    safe=36,
    most=44,
    peak_requested_bytes=80 * MIB,
    peak_allocated_bytes=95 * MIB,
    fixed_bytes=5 * MIB,
    bytes_per_example=MIB,
    wanted=64,
    wanted_fits=False,
    captured_at=(1, 20, 40, 50),
    curve=tuple(map(make_point, (1, 20, 40, 50))),
    cards=(
        CardAnswer(
            id="t4", name="Tesla T4", memory_bytes=MIB, limit_bytes=MIB, largest=None, safe=None,
            holds_wanted=False,
        ),
    ),
    confirmation=Confirmation(
        by="phantom",
        predicted=41,
        runs=(
            ConfirmingRun(size=40, ran=True),
            ConfirmingRun(size=41, ran=False, kind=FailureKind.OUT_OF_MEMORY, detail="OOM"),
        ),
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


def test_the_json_reads_back() -> None:
    assert msgspec.json.decode(encode_report(ANSWER), type=FitAnswer) == ANSWER


def test_the_json_keeps_to_the_schema() -> None:
    assert breaches(json.loads(encode_report(ANSWER)), "fit", "FitAnswer") == []


def test_the_page_shows_names_as_text() -> None:
    page = to_html(ANSWER)
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert len(re.findall(r"<polyline", page)) == 2


def test_the_page_has_every_figure_of_the_curve() -> None:
    page = to_html(ANSWER)
    for point in ANSWER.curve:
        assert f"{point.requested_bytes:,} bytes" in page
        assert f"{point.allocated_bytes:,} bytes" in page


def test_priced_cards_come_before_the_curve() -> None:
    card = replace(ANSWER.cards[0], price=0.355, largest=70, safe=64, holds_wanted=True)
    priced = replace(ANSWER, limit_of="cards", card="", cards=(card,), cheapest="t4")
    for width in (60, 80, 160):
        text = to_text(priced, width)
        assert "0.355" in text
        assert text.index("per hour") < text.index("Memory by batch size")
        assert "--gpu t4" in text.partition("Next: ")[2]


def test_cards_with_the_same_answer_share_a_row() -> None:
    card = replace(ANSWER.cards[0], largest=70, safe=64, most=80, holds_wanted=None)
    names = ("rtx-3070-ti-laptop", "rtx-4060-ti-8gb", "v100s-32gb-pcie")
    cards = [replace(card, id=name) for name in names]
    cards.append(replace(card, id="t4", largest=71))
    answer = replace(ANSWER, limit_of="cards", wanted=None, cards=tuple(cards))
    for width in (60, 80, 160):
        text = to_text(answer, width)
        assert all(name in text for name in names)
        assert text.count("64 70 80") == 1
        assert "64 71 80" in text


def test_the_chart_reaches_marks_above_its_curve() -> None:
    page = to_html(replace(ANSWER, largest=60, failing=61))
    assert "largest: batch 60" in page
    assert "batch 61" in page


def test_the_terminal_obeys_no_name() -> None:
    for width in (40, 120):
        assert "\x1b" not in to_text(ANSWER, width)


def test_the_text_states_runs_growth_and_the_prediction() -> None:
    text = to_text(ANSWER)
    assert "40 ran, 41 ran out of memory" in text
    assert "The estimate alone gave 41 as the largest." in text
    assert "about 5.00 MiB plus 1.00 MiB per example of the batch" in text
    assert "requested 80.00 MiB, allocated 95.00 MiB" in text
    assert "peak at batch 40" in to_html(ANSWER)
    assert "may fit" not in text


def test_sizes_between_the_bounds_may_fit_without_runs() -> None:
    unrun = replace(ANSWER, confirmation=None)
    assert "Sizes from 41 to 44 may fit" in to_text(unrun)
    assert "Sizes from" not in to_text(ANSWER)


def test_remedies_name_their_batch() -> None:
    assert "Remedies at batch 64" in to_text(ANSWER)
    assert "Remedies at batch 64" in to_html(ANSWER)
    assert "Remedies at batch 40" in to_text(replace(ANSWER, wanted=None))


def test_an_answer_without_a_curve_is_shown() -> None:
    bare = replace(
        ANSWER, curve=(), cards=(), remedies=(), confirmation=None, largest=0, safe=0,
        peak_requested_bytes=None, peak_allocated_bytes=None,
    )  # fmt: skip
    assert "line-chart" not in re.sub(r"<style>.*?</style>", "", to_html(bare), flags=re.DOTALL)
    assert "Batch 40 is the largest" in to_text(bare)


def test_a_size_that_is_not_possible_has_its_reason() -> None:
    refused = SizeFailure(size=41, kind=FailureKind.TOO_LARGE, detail="2**31 elements")
    text = to_text(replace(ANSWER, refused=refused))
    assert "Batch 41 is not possible: 2**31 elements" in text


def test_swapping_is_explained() -> None:
    assert "TensorFlow swaps different tensors" in to_text(replace(ANSWER, swaps=True))


def test_an_input_size_is_written_as_its_axes() -> None:
    answer = replace(
        ANSWER, varied="input size", shape="a=32N,32N,3 b=N", batch_size=8, wanted=None
    )
    text = to_text(answer)
    assert "train, batch 8, Adam" in text
    assert "Input a=1152,1152,3 b=36 is safe" in text
    assert "a=1280,1280,3 b=40 ran, a=1312,1312,3 b=41 ran out of memory" in text
    assert "Memory by input size" in to_html(answer)
