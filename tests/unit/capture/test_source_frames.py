"""Errors of the user's own code, told by the line that they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.capture.run.source_frames import (
    describe_user_error,
    find_culprit,
    find_user_line,
)


def raised_by(path: Path, code: str) -> BaseException:
    path.write_text(code)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever the code raises
        exec(compile(code, str(path), "exec"), {"json": json, "__name__": path.stem})
    return caught.value


def test_the_users_innermost_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    # GIVEN a line of the user's own that a library refuses, two calls deep
    error = raised_by(path, "def read():\n    json.loads('{')\n\nread()\n")
    # THEN the line is named, and not that of the library
    assert find_user_line(error) == f"{path}:2"
    assert describe_user_error(error).startswith(
        f"{path}:2: JSONDecodeError: Expecting property"
    )
    assert find_culprit(error) == "user"
