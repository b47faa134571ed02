from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.model.choice import Category
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.contract.report.writing import convert_report
from analyzer.report.render import sections
from analyzer.report.report_sections import what_if_lines
from analyzer.report.summary import error_line, summarize

GIB = 2**30


ANSWER: dict[str, Any] = {
    "outcome": "fits",
    "basis": "measured",
    "limit_of": "card",
    "card": "A100",
    "limit_bytes": 16 * GIB,
    "need_bytes": 7 * GIB,
    "headline": "FITS A100: needs 7.00 GiB of 16.00 GiB, 9.00 GiB to spare",
    "cautions": [],
}


def report(**changes: Any) -> ReportFile:
    peak = {
        "requested_bytes": 6 * GIB,
        "allocated_bytes": 7 * GIB,
        "pool_bytes": 8 * GIB,
        "process_bytes": None,
        "op": "conv",
        "layer": "net",
        "step": 2,
        "instant": 7,
        "allocated_instant": 7,
    }
    categories = {category.value: 0 for category in Category}
    document = {
        "kind": "trace",
        "peak": peak,
        "device": {"kind": "gpu", "name": "A100", "memory_limit_bytes": 16 * GIB},
        "categories_at_peak": {**categories, "activation": 4 * GIB, "parameter": 2 * GIB},
        "error": None,
        "uncertainty": None,
        "verdict": ANSWER,
        **changes,
    }
    return convert_report(document)


@pytest.mark.parametrize(
    ("outcome", "tone"),
    [
        ("fits", "good"),
        ("does not fit", "bad"),
        ("cannot tell", "warning"),
        ("no limit given", "strong"),
        ("failed", "bad"),
    ],
)
def test_the_verdict_shown_is_the_documents(outcome: str, tone: str) -> None:
    answer = {**ANSWER, "outcome": outcome, "headline": "x", "cautions": ["a", "b"]}
    found = summarize(report(verdict=answer))
    assert (found.tone, found.headline, found.notices) == (tone, "x", ("Caution: a; b.",))


def test_without_a_verdict_nothing_is_judged() -> None:
    found = summarize(report(verdict=None))
    assert found.tone == "strong"
    assert {figure.label for figure in found.figures if figure.value} == {
        "requested", "allocated", "pool",
    }  # fmt: skip


def test_the_figures_are_the_documents() -> None:
    sizes = {figure.label: figure.value for figure in summarize(report()).figures}
    assert sizes["limit"] == 16 * GIB
    assert sizes["needs"] == 7 * GIB


def test_it_says_how_it_was_found_and_how_sure_it_is() -> None:
    uncertain = {
        "low_bytes": 6 * GIB,
        "high_bytes": 8 * GIB,
        "allocated_low_bytes": 7 * GIB,
        "allocated_high_bytes": 9 * GIB,
        "because": ["two orders are possible"],
        "limit_high_bytes": None,
        "schedules": [],
        "unsized": 0,
    }
    answer = {**ANSWER, "basis": "predicted"}
    found = summarize(report(kind="estimate", uncertainty=uncertain, verdict=answer))
    text = " ".join(found.sentences)
    assert "Predicted for A100; no step ran." in text
    assert "The step's peak, 6.00 GiB requested, is reached in step 2 by conv (layer net)." in text
    assert "requested 6.00 GiB to 8.00 GiB, allocated 7.00 GiB to 9.00 GiB." in text
    assert found.reasons == ("two orders are possible",)


def test_shares_fill_the_bar() -> None:
    shares = summarize(report()).shares
    assert [share.category for share in shares] == ["parameter", "activation"]
    assert sum(share.ratio for share in shares) == pytest.approx(1)


# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISION = {
    "usual": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def lab(colour: str, vision: np.ndarray) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(vision @ linear, 0, 1)
    xyz = (
        np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
        @ seen
    )
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_categories_can_be_told_apart(theme: str, vision: str) -> None:
    css = (Path(sections.__file__).parent / "assets/shared.css").read_text(encoding="utf-8")
    block = css.split("}")[0 if theme == "light" else 1]
    colours = {
        category.value: re.search(
            rf"--{category.value.replace('_', '-')}: (#\w{{6}})", block
        ).group(1)
        for category in Category
    }
    seen = {name: lab(colour, VISION[vision]) for name, colour in colours.items()}
    names = list(seen)
    distances = {
        (a, b): np.linalg.norm(seen[a] - seen[b])
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    neighbours = min(distances[pair] for pair in zip(names[:-1], names[1:], strict=True))
    assert neighbours > 20, "stacked next to each other"
    assert min(distances.values()) > 8, min(distances, key=distances.__getitem__)


REPLAYED = {
    "memory_limit_bytes": 8 * GIB,
    "growth": True,
    "fragmentation_fraction": 0.0,
    "fits": True,
}


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("", ""),
        ("Too bad", "Too bad"),
        ("Too bad\nreally", "really"),
        (
            'Graph execution error:\n\nDetected at node x\n  File "a.py", line 3, in f\n'
            "OOM when allocating tensor with shape[2]\n\t [[{{node x}}]]\nHint: look\n",
            "OOM when allocating tensor with shape[2]",
        ),
        ('File "a.py", line 3', 'File "a.py", line 3'),
        ("x" * 400, "x" * 300 + "…"),
    ],
)
def test_the_line_that_says_what_happened(message: str, line: str) -> None:
    assert error_line(message) == line


@pytest.mark.parametrize(
    ("replayed", "words"),
    [
        (None, ""),
        (REPLAYED, "Replayed with a limit of 8.00 GiB, memory growth on"),
        (
            {**REPLAYED, "growth": False, "fragmentation_fraction": 0.1},
            "Replayed with a limit of 8.00 GiB, memory growth off, "
            "internal_fragmentation_fraction 0.1",
        ),
    ],
)
def test_other_settings_in_words(replayed: dict[str, Any] | None, words: str) -> None:
    line = "".join(what_if_lines(report(what_if=replayed)))
    assert line.partition(": ")[0] == words
