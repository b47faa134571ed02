"""Errors of the user's own code, told by the line that they come from."""

import json
from pathlib import Path

import pytest

from analyzer.capture.run.source_frames import (
    describe_user_error,
    find_culprit,
    find_user_line,
)


def test_the_users_innermost_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    # GIVEN a line of the user's own that a library refuses, two calls deep
    code = "def read():\n    json.loads('{')\n\nread()\n"
    with pytest.raises(json.JSONDecodeError) as caught:
        exec(compile(code, str(path), "exec"), {"json": json, "__name__": path.stem})
    error = caught.value
    # THEN the line is named, and not that of the library
    assert find_user_line(error) == f"{path}:2"
    assert describe_user_error(error).startswith(
        f"{path}:2: JSONDecodeError: Expecting property"
    )
    assert find_culprit(error) == "user"


def test_an_error_in_a_graph_states_its_reason() -> None:
    text = 'Graph execution error:\n\nDetected at node Equal defined at\n  File "a.py"\nShapes differ\n'
    assert (
        describe_user_error(ValueError(text))
        == "ValueError: Shapes differ (at node Equal)"
    )
