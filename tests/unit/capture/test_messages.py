"""What a command and its children tell each other: what goes in comes out, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.model.contract.capture_request import (
    REQUEST_VERSION,
    WATCH_VERSION,
    CaptureOptions,
    CaptureRequest,
    TargetKind,
    TargetSpec,
    WatchRequest,
)
from analyzer.model.contract.child_messages import (
    parse_message,
    read_message,
    write_message,
)
from analyzer.model.errors import AnalyzerError

NO_TEXT = "caf\udce9.py"  # a file's name as Linux may have it
OPTIONS = CaptureOptions(
    batch_size=4, shapes={"x": (2, 3), "": (1,)}, jit=False, assume={"while": 7}, steps=2
)
CAPTURE = CaptureRequest(
    target=TargetSpec(text=NO_TEXT, kind=TargetKind.FILE, path=NO_TEXT, attribute="build"),
    options=OPTIONS,
    folder="/somewhere",
    kind="static",
)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"message": "stage", "stage": "x"}',
        b'{"message": "failed", "error": 1, "hint": "", "exit_code": 2}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_is_passed_over(line: bytes) -> None:
    assert parse_message(line) is None


def test_a_request_comes_out_as_it_went_in(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    write_message(file, CAPTURE)
    assert read_message(file, CaptureRequest, REQUEST_VERSION) == CAPTURE
    script = WatchRequest(script=NO_TEXT, folder="f", arguments=("a", NO_TEXT), options=OPTIONS)
    write_message(file, script)
    assert read_message(file, WatchRequest, WATCH_VERSION) == script


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [("folder", 1, r"Expected `str`, got `int` - at `\$.folder`"), ("kind", "b", r"\$.kind")],
)
def test_a_damaged_request_names_its_field(
    tmp_path: Path, field: str, value: object, says: str
) -> None:
    file = tmp_path / "request.json"
    write_message(file, CAPTURE)
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with pytest.raises(AnalyzerError, match=says):
        read_message(file, CaptureRequest, REQUEST_VERSION)
