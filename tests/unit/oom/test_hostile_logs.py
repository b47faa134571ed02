"""Hostile logs: damaged, mixed, endless, in any encoding; none ends in an exception or takes long."""

from __future__ import annotations

import gzip
import io
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from unit.oom.dump_wordings import VERSIONS, log_of
from unit.oom.test_components import CASES
from unit.oom.test_every_version import FULL, PIECES

from analyzer.model.errors import InputError
from analyzer.oom import read_oom_log
from analyzer.oom.log_sections import build_sections
from analyzer.oom.scan.lines import _KEYS
from analyzer.report.render.page_shell import to_page
from analyzer.report.render.terminal import print_terminal

MOST_SECONDS = 20.0
LOGS = 10_000
NUMBERS = (
    "0",
    "-1",
    "9" * 19,
    "9" * 400,
    "1e308",
    "0.000001",
    "18446744073709551615",
    "7,777",
    "nan",
)
Draw = random.Random


def _pieces() -> list[str]:
    logs = [log_of(scene, version) for scene in (PIECES, FULL) for version in VERSIONS]
    real = (Path(__file__).parent / "logs").glob("*.gz")
    texts = [*logs, *(case[0] for case in CASES.values())]
    texts += [gzip.decompress(path.read_bytes()).decode()[:20_000] for path in real]
    return [line for text in texts for line in text.splitlines() if line.strip()]


def _with_numbers(draw: Draw, line: str) -> str:
    return "".join(
        draw.choice(NUMBERS) if part.isdigit() and draw.random() < 0.5 else part
        for part in _split_digits(line)
    )


def _split_digits(line: str) -> list[str]:
    parts = [""]
    for character in line:
        if parts[-1] and parts[-1][-1].isdigit() != character.isdigit():
            parts.append("")
        parts[-1] += character
    return parts


def _with_damage(draw: Draw, line: str) -> str:
    place = draw.randrange(len(line) + 1)
    junk = "".join(chr(draw.choice((0, 27, 10, 13, 8, 34, 92, 0x202E, 0x1F600))) for _ in range(4))
    return line[:place] + junk + line[place + draw.randrange(9) :]


def _with_keys(draw: Draw, line: str) -> str:
    return line + " ".join(draw.choice(_KEYS).decode() for _ in range(draw.randrange(60)))


CHANGES: tuple[Callable[[Draw, str], str], ...] = (
    *(_with_numbers, _with_damage, _with_keys),
    lambda draw, line: line * draw.randrange(1, 40),
    lambda draw, line: f"[{draw.randrange(9)},{draw.randrange(3)}]<stderr>:{line}",
    lambda draw, line: json.dumps({"log": line, "n": draw.random()}),
    lambda draw, line: line[: draw.randrange(len(line) + 1)],
)
PACKINGS: tuple[Callable[[str], bytes], ...] = (
    *(str.encode, lambda text: text.encode("utf-16", "replace")),
    *(lambda text: text.encode("utf-32", "replace"), lambda text: gzip.compress(text.encode())),
    lambda text: gzip.compress(text.encode())[:-20],
    lambda text: json.dumps({"cells": [{"text": text}], "nbformat": 4}).encode(),
)


def make_log(seed: int, pieces: list[str]) -> bytes:
    """Return the hostile log of a seed."""
    draw = random.Random(seed)
    lines = []
    start = draw.randrange(len(pieces))
    for place in range(draw.randrange(1, 120)):
        line = pieces[
            (start + place) % len(pieces) if draw.random() < 0.7 else draw.randrange(len(pieces))
        ]
        if draw.random() < 0.4:
            line = draw.choice(CHANGES)(draw, line)
        lines.append(line)
    text = draw.choice(("\n", "\r\n", "\r", "\n\n")).join(lines)
    return (draw.choice(PACKINGS) if draw.random() < 0.3 else str.encode)(
        text.encode("utf-8", "replace").decode()
    )


def check_log(seed: int, pieces: list[str], page: Path) -> None:
    """Read the log of a seed; write its document, its text and, for some, its page."""
    began = time.process_time()
    try:
        report = read_oom_log(io.BytesIO(make_log(seed, pieces)), "a log")
    except InputError:
        return
    json.loads(json.dumps(report.plain))
    if seed % 10 == 0:
        console = Console(file=io.StringIO(), width=40 + seed % 120)
        print_terminal(build_sections(report.document), console)
        page.write_text(to_page(build_sections(report.document, report.cases)), "utf-8")
    assert time.process_time() - began < MOST_SECONDS, seed


def test_hostile_logs_are_read(tmp_path: Path) -> None:
    pieces = _pieces()
    for seed in range(40):
        check_log(seed, pieces, tmp_path / "page.html")


def test_a_long_line_of_keywords_is_read_in_linear_time() -> None:
    line = b" ".join(_KEYS[n % len(_KEYS)] for n in range(2_000_000))
    began = time.process_time()
    read_oom_log(io.BytesIO(line + b"\n"), "a log")
    assert len(line) > 10_000_000
    assert time.process_time() - began < 5


@pytest.mark.slow
def test_ten_thousand_hostile_logs_are_read(tmp_path: Path) -> None:
    pieces = _pieces()
    for seed in range(40, LOGS):
        check_log(seed, pieces, tmp_path / "page.html")
