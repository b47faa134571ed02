"""The same failure in every format in which a log reaches people."""

import gzip
import io
import json

import pytest
from unit.oom.dump_wordings import FULL, PIECES, Scene, log_of

from analyzer.oom import OomReport, read_oom_log

LOG = log_of(PIECES, "2.9")
LINES = LOG.splitlines()
BAR = "  1/500 [..............] - ETA: 2:03 - loss: 0.6931\r  2/500 [>.............] - ETA: 1:59"


def report(text: str | bytes) -> OomReport:
    content = text.encode() if isinstance(text, str) else text
    return read_oom_log(io.BytesIO(content), "a log")


def with_prefix(prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in LINES)


def rows_of(key: str) -> list[dict[str, object]]:
    return [{"timestamp": 1795, key: line, "id": n} for n, line in enumerate(LINES)]


def notebook(text: object) -> str:
    cell = {"outputs": [{"output_type": "stream", "text": text}], "source": ["train()"]}
    return json.dumps(
        {"nbformat": 4, "cells": [cell]}, indent=None if text == LOG else 1
    )


FORMATS: dict[str, str | bytes] = {
    "plain": LOG,
    "gzip": gzip.compress(LOG.encode()),
    "windows": LOG.replace("\n", "\r\n"),
    "utf-16": LOG.encode("utf-16"),
    "utf-8 mark": b"\xef\xbb\xbf" + LOG.encode(),
    "notebook": notebook([f"{line}\n" for line in LINES]),
    "one-line notebook": notebook(LOG),
    "container": "".join(f"{json.dumps(row)}\n" for row in rows_of("log")),
    "rows of an array": json.dumps(rows_of("textPayload"), indent=1),
    "mpi": with_prefix("[1,3]<stderr>:"),
    "torchrun": with_prefix("[rank3]: "),
    "compose": with_prefix("worker_1  | "),
    "kubernetes": with_prefix("2026-11-22T05:08:25.123456789Z stderr F "),
    "bars": with_prefix(BAR),
    "bars around": f"{BAR}\n" * 200 + LOG + f"{BAR}\n" * 200,
    "colours": "".join(f"\x1b[33m{line}\x1b[0m\x1b[K\n" for line in LINES),
    "numbered": "".join(f"{n}: {line}\n" for n, line in enumerate(LINES, 500)),
    "twice": f"{LOG}the same again:\n{LOG}",
    "excerpt first": f"{LINES[0]}\n...\n{LOG}",
    "glued": LOG.replace("\n2026", "2026"),
}


@pytest.mark.parametrize("content", FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_same_figures(content: str | bytes) -> None:
    (failure,) = report(content).report.failures
    assert failure.asked.requested_bytes == PIECES.asked
    assert failure.op == PIECES.op
    assert failure.in_use_bytes == PIECES.in_use
    assert failure.limit_bytes == PIECES.limit
    assert failure.largest_hole_bytes == PIECES.largest_hole
    assert failure.source == "/home/me/train.py:42"


@pytest.mark.parametrize("labels", [("[1,0]<stderr>", "[1,1]<stderr>"), ("0", "1")])
def test_two_ranks_that_write_at_once_are_kept_apart(labels: tuple[str, str]) -> None:
    left = [f"{labels[0]}: {line}" for line in LINES]
    right = [f"{labels[1]}: {line}" for line in log_of(FULL, "2.9").splitlines()]
    mixed = [line for pair in zip(left, right, strict=False) for line in pair]
    first_failure, second = report("\n".join(mixed)).report.failures
    assert first_failure.largest_hole_bytes == PIECES.largest_hole
    assert second.in_use_bytes == FULL.in_use


def test_two_devices_that_name_their_threads_are_kept_apart() -> None:
    other = Scene(FULL.regions, FULL.shape, FULL.limit, allocator="GPU_1_bfc")
    first = log_of(PIECES, "2.21", with_text=False).splitlines()
    text = log_of(other, "2.21", with_text=False).replace(" 77 ", " 78 ")
    mixed = []
    for pair in zip(first, text.splitlines(), strict=False):
        mixed += [line for line in pair if line.startswith(("I0000", "W0000"))]
    failures = {one.allocator: one for one in report("\n".join(mixed)).report.failures}
    assert set(failures) == {"GPU_0_bfc", "GPU_1_bfc"}
