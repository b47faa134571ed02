"""The answer of ``analyze fit`` as JSON, text and a page."""

from __future__ import annotations

import io
import json
import re

from msgspec.structs import replace
from rich.console import Console
from schemas import breaches

from analyzer.fitting.report.fit_page import render_fit_page, round_heights, round_sizes
from analyzer.fitting.report.fit_terminal import print_answer
from analyzer.fitting.report.fit_words import whether_fits
from analyzer.fitting.scaling.fit_answer import (
    CardAnswer,
    Confirmation,
    ConfirmingRun,
    CurvePoint,
    FitAnswer,
    FormsUsed,
    PeakMove,
    decode_answer,
    encode_answer,
)
from analyzer.model.contract.report.finding import StepRemedy

MIB = 1 << 20
HOSTILE = "<script>alert(1)</script>\x1b[31m"
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
    safe=36,
    most=44,
    peak_requested_bytes=80 * MIB,
    peak_allocated_bytes=95 * MIB,
    wanted=64,
    wanted_fits=False,
    forms=FormsUsed(captured_at=(32, 38, 40), checked_at=(40,), is_closed_form=True),
    curve=tuple(
        CurvePoint(size=n, requested_bytes=2 * n * MIB, allocated_bytes=3 * n * MIB, op=HOSTILE)
        for n in (1, 20, 40, 50)
    ),
    moves=(
        PeakMove(from_size=1, op=HOSTILE, layer="", requested_bytes=MIB),
        PeakMove(from_size=9, op="b", layer=HOSTILE, requested_bytes=9 * MIB),
    ),
    cards=(
        CardAnswer(
            id="t4", name="Tesla T4", memory_bytes=MIB, limit_bytes=MIB, largest=None, safe=None,
            holds_wanted=False,
        ),
    ),
    confirmation=Confirmation(
        by="phantom",
        predicted=41,
        runs=(ConfirmingRun(size=40, ran=True), ConfirmingRun(size=41, ran=False, detail="OOM")),
    ),
    remedies=(
        StepRemedy(id="a", title=HOSTILE, code="x = 1", saves_bytes=MIB, requested_bytes=2 * MIB),
        StepRemedy(id="b", title="b", code="y = 2", failed=HOSTILE),
    ),
    headline="Batch 40 is the largest that fits.",
)  # fmt: skip


def text_of(answer: FitAnswer, width: int = 120) -> str:
    stream = io.StringIO()
    print_answer(answer, Console(file=stream, width=width, no_color=True))
    return stream.getvalue()


def test_the_json_reads_as_it_was_written() -> None:
    assert decode_answer(encode_answer(ANSWER)) == ANSWER


def test_what_is_written_keeps_to_the_schema() -> None:
    assert breaches(json.loads(encode_answer(ANSWER)), "fit", "FitAnswer") == []


def test_the_page_runs_no_script_and_shows_names_as_text() -> None:
    page = render_fit_page(ANSWER)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "script-src" not in policy[1]
    assert len(re.findall(r"<polyline", page)) == 2


def test_the_page_has_every_figure_of_the_curve() -> None:
    page = render_fit_page(ANSWER)
    for point in ANSWER.curve:
        assert f"{point.requested_bytes:,} bytes" in page
        assert f"{point.allocated_bytes:,} bytes" in page


def test_the_terminal_obeys_no_name() -> None:
    for width in (40, 120):
        assert "\x1b" not in text_of(ANSWER, width)


def test_what_chance_decides_is_not_called_unfit() -> None:
    unrun = replace(ANSWER, confirmation=None, most=55)
    for answer, whether in ((unrun, "may not fit"), (ANSWER, "does not fit")):
        assert [whether_fits(answer, size) for size in (1, 40, 50)] == ["", "", whether]
        assert whether in text_of(answer)
    assert whether_fits(unrun, 56) == "does not fit"


def test_remedies_say_at_which_batch() -> None:
    assert "Remedies at batch 64" in text_of(ANSWER)
    assert "Remedies at batch 64" in render_fit_page(ANSWER)
    assert "Remedies at batch 40" in text_of(replace(ANSWER, wanted=None))


def test_the_text_tells_what_ran_and_what_was_predicted() -> None:
    text = " ".join(text_of(ANSWER).split())
    assert "40 ran, 41 ran out of memory" in text
    assert "Predicted was 41" in text


def test_an_answer_without_a_curve_is_shown_too() -> None:
    bare = replace(
        ANSWER, curve=(), moves=(), cards=(), remedies=(), confirmation=None, largest=0, safe=0,
        peak_requested_bytes=None, peak_allocated_bytes=None,
    )  # fmt: skip
    assert "<svg" not in render_fit_page(bare)
    assert "Batch 40 is the largest" in text_of(bare)


def test_a_batch_where_tensors_are_swapped_is_told_as_likely() -> None:
    forms = replace(
        ANSWER.forms, is_closed_form=False, why_not="what is swapped is chance", swaps=True
    )
    unrun = replace(ANSWER, forms=forms, confirmation=None)
    text = " ".join(text_of(unrun).split())
    assert "differs from process to process" in text
    assert "No batch from 41 to 44 was tried." in text
    assert "was tried." not in text_of(replace(ANSWER, forms=forms))  # but run
    assert "with 6 % to spare" in text
    assert "it depends on" not in text


def test_of_a_compiled_step_kernels_decide_not_the_order_of_ops() -> None:
    forms = replace(ANSWER.forms, planned_at=(36, 40))
    text = " ".join(text_of(replace(ANSWER, forms=forms)).split())
    assert "it depends on the kernels that XLA chooses" in text
    assert "order" not in text.partition("The step was captured")[0]


def test_the_page_says_between_what_a_saving_lies() -> None:
    remedy = replace(ANSWER.remedies[0], saves_low_bytes=0, saves_high_bytes=MIB)
    page = render_fit_page(replace(ANSWER, remedies=(remedy,)))
    assert "depending on the order of the ops" in page
    assert "depending on the order of the ops" not in render_fit_page(ANSWER)


def test_long_code_is_folded_on_the_page() -> None:
    remedy = replace(ANSWER.remedies[0], code="\n".join(f"x = {n}" for n in range(9)))
    page = render_fit_page(replace(ANSWER, remedies=(remedy,)))
    assert "<summary>9 lines</summary><pre>x = 0" in page
    assert "<details>" not in render_fit_page(ANSWER)


def test_a_size_of_the_input_is_written_as_its_axes() -> None:
    answer = replace(
        ANSWER, varied="input size", shape="a=32N,32N,3 b=N", batch_size=8, wanted=None
    )
    text = " ".join(text_of(answer).split())
    assert "train, batch 8, Adam" in text
    assert "take input a=1152,1152,3 b=36: it fits" in text
    assert "a=1280,1280,3 b=40 ran, a=1312,1312,3 b=41 ran out of memory" in text
    page = render_fit_page(answer)
    assert "Peak against the input" in page
    assert "<dd>a=1280,1280,3 b=40</dd>" in page


def test_the_charts_marks_are_round() -> None:
    assert round_sizes(102) == [0, 20, 40, 60, 80, 100]
    assert round_sizes(7) == [0, 2, 4, 6]
    assert round_sizes(1) == [0, 1]
    assert round_heights(int(2.5 * 1024 * MIB)) == [n * 512 * MIB for n in range(6)]
    assert round_heights(1) == [0, 1]


def test_what_fits_by_waiting_for_other_ops_is_told_on_a_cpu_alone() -> None:
    def told(answer: FitAnswer) -> str:
        out = io.StringIO()
        print_answer(answer, Console(file=out, width=200))
        return out.getvalue()

    above = replace(ANSWER, device="cpu", card="", card_name="", limit_of="given")
    assert "At batch 40 ops that run side by side would take more than the limit" in told(above)
    assert "side by side" not in told(replace(above, limit_bytes=120 * MIB))
    assert "side by side" not in told(ANSWER)


def test_what_does_not_fit_though_its_chunks_are_less_than_the_limit_is_explained() -> None:
    low = tuple(replace(point, allocated_bytes=point.size * MIB) for point in ANSWER.curve)
    assert "free lies in pieces" in text_of(replace(ANSWER, curve=low))
    assert "free lies in pieces" not in text_of(ANSWER)
