"""Damaged and hostile logs: none ends in an exception, takes long or reaches the terminal."""

import gzip
import io
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from unit.oom.dump_wordings import FULL, PIECES, VERSIONS, log_of
from unit.oom.test_wordings import WORDINGS

from analyzer.model.errors import InputError
from analyzer.oom import read_oom_log
from analyzer.oom.lines import KEYS
from analyzer.oom.log_sections import build_sections
from analyzer.oom.wordings import PATTERNS, find_all
from analyzer.report.render.page_shell import to_page
from analyzer.report.render.terminal import print_terminal

MOST_SECONDS = 20.0
NUMBERS = (
    "0",
    "-1",
    "9" * 19,
    "9" * 400,
    "1e308",
    "0.000001",
    str(1 << 64),
    "7,777",
    "nan",
)
Draw = random.Random


def pieces() -> list[str]:
    texts = [log_of(scene, version) for scene in (PIECES, FULL) for version in VERSIONS]
    texts += [row["log"] for row in WORDINGS["failure"] + WORDINGS["no_failure"]]
    for path in (Path(__file__).parent / "logs").glob("*.gz"):
        texts.append(gzip.decompress(path.read_bytes()).decode()[:20_000])
    return [line for text in texts for line in text.splitlines() if line.strip()]


def with_numbers(draw: Draw, line: str) -> str:
    return re.sub(r"\d+", lambda m: draw.choice((m[0], *NUMBERS)), line)


def with_damage(draw: Draw, line: str) -> str:
    place = draw.randrange(len(line) + 1)
    junk = draw.choice(("\0", "\x1b", "\n", "\r\b", '"\\', "\u202e", "\U0001f600"))
    return line[:place] + junk + line[place + draw.randrange(9) :]


CHANGES: tuple[Callable[[Draw, str], str], ...] = (
    with_numbers,
    with_damage,
    lambda draw, line: line + " ".join(draw.choice(KEYS).decode() for _ in range(60)),
    lambda draw, line: line * draw.randrange(1, 40),
    lambda draw, line: f"[{draw.randrange(9)},{draw.randrange(3)}]<stderr>:{line}",
    lambda draw, line: json.dumps({"log": line, "n": draw.random()}),
    lambda draw, line: line[: draw.randrange(len(line) + 1)],
)


def make_log(draw: Draw, lines: list[str]) -> bytes:
    start = draw.randrange(len(lines))
    chosen = []
    for place in range(draw.randrange(1, 120)):
        line = lines[(start + place) % len(lines)]
        if draw.random() < 0.3:
            line = draw.choice(lines)
        if draw.random() < 0.4:
            line = draw.choice(CHANGES)(draw, line)
        chosen.append(line)
    text = draw.choice(("\n", "\r\n", "\r", "\n\n")).join(chosen)
    return text.encode("utf-8", "replace")


def check_log(seed: int, lines: list[str], page: Path) -> None:
    """Read the log of a seed; write its document, its text and, for some, its page."""
    began = time.process_time()
    report = read_oom_log(io.BytesIO(make_log(Draw(seed), lines)), "a log")
    json.loads(json.dumps(report.document))
    if seed % 10 == 0:
        console = Console(file=io.StringIO(), width=40 + seed % 120)
        print_terminal(build_sections(report.report), console)
        page.write_text(
            to_page(build_sections(report.report, report.failures)), "utf-8"
        )
    assert time.process_time() - began < MOST_SECONDS, seed


def test_hostile_logs_are_read(tmp_path: Path) -> None:
    lines = pieces()
    for seed in range(60):
        check_log(seed, lines, tmp_path / "page.html")


def test_damaged_gzip_and_zip_are_refused() -> None:
    log = gzip.compress(log_of(PIECES, "2.9").encode())
    for content in (log[:4], b"PK\x03\x04" + log):
        with pytest.raises(InputError):
            read_oom_log(io.BytesIO(content), "a log")


def test_the_part_before_damage_in_a_gzip_is_read() -> None:
    noise = Draw(3).randbytes(1 << 20).hex()
    log = gzip.compress(f"{log_of(PIECES, '2.9')}{noise}".encode())
    report = read_oom_log(io.BytesIO(log[: len(log) // 2]), "a log")
    assert len(report.report.failures) == 1


def test_a_long_line_of_keywords_is_read_in_linear_time() -> None:
    line = b" ".join(KEYS[n % len(KEYS)] for n in range(200_000))
    began = time.process_time()
    read_oom_log(io.BytesIO(line + b"\n"), "a log")
    assert time.process_time() - began < 10


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_is_slow_on_a_line_that_nearly_matches(name: str) -> None:
    words = re.findall(r"[A-Za-z][\w :,.'/=-]{2,}", PATTERNS[name].pattern)
    for seed in {*words, " ".join(words), "1 ", "a", "[", " "} - {""}:
        line = (seed * 16_384)[:16_384]
        began = time.process_time()
        find_all(name, line)
        assert time.process_time() - began < 10, seed
