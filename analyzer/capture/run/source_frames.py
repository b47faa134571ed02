"""Whose line of code an error comes from, the user's, a library's or ours, and what is shown of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from typing import Final

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_WRAPPER: Final = re.compile(r"\{\{function_node [^}]*\}\}\s*")
_DETECTED: Final = re.compile(r"Detected at node (\S+) defined at")
_OURS: Final = str(Path(__file__).parents[2]) + os.sep


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return os.sep


_STARTED_IN: Final = _working_folder()
"""The working folder at the start; the user's code may change it."""
_ERROR: Final = re.compile(r"\w*(Error|Exception|Interrupt)\b.*:")


def describe_user_error(error: BaseException) -> str:
    """Return ``file:line: Type: message`` for the innermost line of the user's own code."""
    lines = [line.strip() for line in _ANSI.sub("", str(error)).splitlines() if line.strip()]
    if lines and lines[0] == "in user code:":
        return _describe_traced(lines)
    what = f"{type(error).__name__}: {_told(lines)}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {what}"
    line = find_user_line(error)
    return f"{line}: {what}" if line else what


def _told(lines: list[str]) -> str:
    """Return what an error's lines say: Keras says first in which layer it happened, and then what."""
    for line, following in itertools.pairwise(lines):
        if line.endswith("Error encountered:"):
            return following
    return " ".join(
        lines[:2] if lines and lines[0].startswith("Exception encountered") else lines[:1]
    )


def clean_message(message: str) -> str:
    """Return TensorFlow's message without the stack of its own and our files, at most 2,000 characters.

    An error in a graph is told as "Graph execution error: Detected at node N defined at", then the
    files, then what happened; an eager one names TensorFlow's wrapper of the op first.
    """
    lines = [
        stripped
        for line in _WRAPPER.sub("", message).splitlines()
        if (stripped := line.strip())
        and not stripped.startswith(('File "', "[[{{node", "Hint: If you want to see a list"))
        and stripped not in ("Graph execution error:", "in user code:")
    ]
    nodes = [match[1] for line in lines if (match := _DETECTED.match(line)) is not None]
    told = [line for line in lines if _DETECTED.match(line) is None]
    text = " ".join(told) if told else message.strip()
    return (f"{text} (at node {nodes[0]})" if nodes else text)[:2000]


def find_user_line(error: BaseException) -> str:
    """Return ``file:line`` of the innermost line of the user's own code, empty where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not is_library(frame.filename):
            return f"{shorten_path(frame.filename)}:{frame.lineno}"
    return ""


def find_culprit(error: BaseException) -> str:
    """Return who raised an error: ``user``, ``ours``, or empty where neither is on the way to it.

    The innermost frame that is no library's decides: what a library refuses, it refuses its caller.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(_OURS):
            return "ours"
        if not is_library(frame.filename):
            return "user"
    return ""


def shorten_path(filename: str) -> str:
    """Return the path as the user would write it: relative to the working folder where inside it."""
    with contextlib.suppress(ValueError):
        return str(Path(filename).relative_to(_STARTED_IN))
    return filename


def _describe_traced(lines: list[str]) -> str:
    """Return ``file:line: Type: message`` from the text that autograph makes of an error in a function.

    Autograph runs a rewritten copy of the user's code; the user's own lines are in its message.
    """
    frames = [
        f"{shorten_path(match[1])}:{match[2]}: "
        for line in lines
        if (match := _FRAME.match(line)) is not None and not is_library(match[1])
    ]
    at = next((at for at in reversed(range(len(lines))) if _ERROR.match(lines[at])), -1)
    what = lines[at]
    if "Exception encountered" in what and at + 1 < len(lines):
        what = f"{what} {lines[at + 1]}"
    return f"{frames[-1] if frames else ''}{what}"


@cache
def is_library(filename: str) -> bool:
    """Say whether a file of code is Python's, a package's or ours, and not the user's."""
    return (
        "site-packages" in filename
        or "dist-packages" in filename
        or "__autograph_generated_file" in filename
        or filename.startswith(_library_roots())
    )


@cache
def _library_roots() -> tuple[str, ...]:
    return (_OURS, sysconfig.get_paths()["stdlib"], "<")
