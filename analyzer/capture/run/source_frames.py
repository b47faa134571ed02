"""Source lines of errors: the user's, a library's or ours, and their short form in messages."""

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_WRAPPER = re.compile(r"\{\{function_node [^}]*\}\}\s*")
_DETECTED = re.compile(r"Detected at node (\S+) defined at")
_ERROR = re.compile(r"\w*(Error|Exception|Interrupt)\b.*:")
_OURS = str(Path(__file__).parents[2]) + os.sep
_MAX_MESSAGE = 2000  # characters
_KERAS_REASON = "Error encountered:"

# Starts of lines in TensorFlow's messages that give no reason.
_STACK = (
    'File "',
    "[[{{node",
    "Hint: If you want to see a list",
    "Detected at node ",
    "Graph execution error:",
    "in user code:",
)

_STARTED_IN = os.sep  # the working folder at the start; the user's code may change it
with suppress(OSError):  # it has been removed
    _STARTED_IN = os.getcwd()


def describe_user_error(error: BaseException) -> str:
    """Return ``file:line: Type: message`` for the innermost line of the user's code."""
    text = _ANSI.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]

    if lines[:1] == ["Graph execution error:"]:
        lines = [clean_message(text)]
    elif lines[:1] == ["in user code:"]:
        return _describe_traced_error(lines)

    # Keras names the layer in the first line and the reason in a later one.
    has_layer = bool(lines) and lines[0].startswith("Exception encountered")
    reason = " ".join(lines[: 2 if has_layer else 1])

    for line, after in pairwise(lines):
        if line.endswith(_KERAS_REASON):
            reason = after
            break

    text = f"{type(error).__name__}: {reason}".rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {text}"

    line = find_user_line(error)

    return f"{line}: {text}" if line else text


def clean_message(message: str) -> str:
    """Return TensorFlow's message without stack frames and colours, at most 2,000 characters.

    TensorFlow writes an error in a graph as "Graph execution error: Detected at node N defined at",
    then the stack, then the reason. An eager error starts with TensorFlow's wrapper of the op.
    """
    message = _ANSI.sub("", message)
    lines = [line.strip() for line in _WRAPPER.sub("", message).splitlines()]
    reasons = [line for line in lines if line and not line.startswith(_STACK)]
    nodes = [match[1] for line in lines if (match := _DETECTED.match(line)) is not None]
    text = " ".join(reasons) if reasons else message.strip()

    return (f"{text} (at node {nodes[0]})" if nodes else text)[:_MAX_MESSAGE]


def find_user_line(error: BaseException) -> str:
    """Return ``file:line`` of the innermost line of the user's code, or ""."""
    return find_own_line(reversed(traceback.extract_tb(error.__traceback__)))


def find_own_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return ``file:line`` of the first frame of the user's code, or ""."""
    own = (one for one in frames if not is_library(one.filename))
    return next((f"{shorten_path(one.filename)}:{one.lineno}" for one in own), "")


def find_culprit(error: BaseException) -> str:
    """Return whose code caused an error: ``user``, ``ours``, or "" if neither is in the traceback.

    The innermost frame outside libraries decides: a library raises errors because of its caller.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(_OURS):
            return "ours"
        if not is_library(frame.filename):
            return "user"

    return ""


def find_cell(filename: str) -> str:
    """Return ``cell 3`` for the code of a cell of the notebook in this process; else empty."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return ""

    label = shell.compile.format_code_name(filename)  # ("Cell", "In[3]")

    return f"cell {label[1].strip('In[]')}" if label else ""


def list_cells() -> list[str]:
    """Return the files of the cells of the notebook in this process, the latest first."""
    return [file for file in reversed(list(linecache.cache)) if find_cell(file)]


def shorten_path(filename: str) -> str:
    """Return a path relative to the working folder if it lies in it; of a cell, ``cell 3``."""
    if cell := find_cell(filename):
        return cell

    with suppress(ValueError):
        return str(Path(filename).relative_to(_STARTED_IN))

    return filename


def _describe_traced_error(lines: list[str]) -> str:
    """Return ``file:line: Type: message`` from autograph's message about an error in a function.

    Autograph runs a rewritten copy of the user's code, so only its message has the user's lines.
    """
    where = ""
    text = lines[-1]

    for frame in filter(None, map(_FRAME.match, lines)):
        if not is_library(frame[1]):
            where = f"{shorten_path(frame[1])}:{frame[2]}: "

    for line, after in pairwise([*lines, ""]):
        if _ERROR.match(line):
            text = line
            if "Exception encountered" in line:
                text = f"{line} {after}".strip()

    return f"{where}{text}"


@cache
def is_library(filename: str) -> bool:
    """Return whether a file belongs to Python, an installed package or this one."""
    return not find_cell(filename) and (
        "site-packages" in filename
        or "dist-packages" in filename
        or "__autograph_generated_file" in filename
        or filename.startswith((_OURS, sysconfig.get_paths()["stdlib"], "<"))
    )
