"""Errors of the user's own code, told by the line that they come from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzer.capture.run.source_frames import (
    clean_message,
    describe_user_error,
    find_culprit,
    find_library,
    find_user_line,
    shorten_path,
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
    assert describe_user_error(error).startswith(f"{path}:2: JSONDecodeError: Expecting property")
    assert find_culprit(error) == "user"


@pytest.mark.parametrize(
    ("code", "library"),
    [("json.loads('{')", "json"), ("import no_such_package", ""), ("1 / 0", "")],
)
def test_the_library_that_raised_an_error_is_named(tmp_path: Path, code: str, library: str) -> None:
    assert find_library(raised_by(tmp_path / "train.py", code)) == library


def test_a_package_that_a_library_misses_is_the_librarys(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    error = raised_by(tmp_path / "site-packages" / "agents.py", "import no_such_package")
    assert find_library(error) == "agents"


def test_what_no_line_of_the_user_raised_is_told_without_one() -> None:
    error = ValueError("\x1b[31mall\x1b[0m of it\nsecond line")
    assert describe_user_error(error) == "ValueError: all of it"
    assert find_user_line(error) == ""
    assert find_culprit(error) == ""


def test_an_error_in_a_traced_function_is_told_by_the_users_own_file() -> None:
    message = (
        'in user code:\n\n    File "/home/me/train.py", line 7, in step  *\n        x + y\n'
        '    File "/usr/lib/site-packages/tensorflow/ops.py", line 9, in add\n'
        "    ValueError: Dimensions must be equal\n"
    )
    told = describe_user_error(ValueError(message))
    assert told == "/home/me/train.py:7: ValueError: Dimensions must be equal"


def test_tensorflows_stack_is_left_out_of_its_message() -> None:
    message = (
        "Graph execution error:\n\nDetected at node step/MatMul defined at (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n\nOOM when allocating tensor\n'
        "\t [[{{node step/MatMul}}]]\nHint: If you want to see a list of allocated tensors\n"
    )
    assert clean_message(message) == "OOM when allocating tensor (at node step/MatMul)"


def test_a_cell_of_an_old_ipython_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(compile=SimpleNamespace())  # IPython 7 has no ``format_code_name``
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert shorten_path("<ipython-input-3-0123456789ab>") == "cell 3"
    assert shorten_path("train.py") == "train.py"
