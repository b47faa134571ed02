"""``analyze`` without arguments: commands for the models, scripts, logs and traces of this folder.

Files are read and parsed, never imported.
"""

import ast
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

_SECONDS = 0.5  # after which the search ends
_MOST_DEPTH = 4  # of folders
_MOST_BYTES = 1 << 20  # read of a file
_MOST_SHOWN = 3  # of a kind
_WIDTH = 80  # of a line with a comment
_OWN_OUTPUT = b"\nNext: analyze "
_OTHER_FOLDERS = re.compile(
    r"\..*|__pycache__|build|dist|env|node_modules|site-packages|venv"
)
_OOM = re.compile(
    rb"OOM when allocating|RESOURCE_EXHAUSTED|ResourceExhausted|[Oo]ut of memory"
)
_FRAMEWORK = re.compile(rb"^\s*(import|from) (tensorflow|keras|tf_keras)\b", re.M)
_TRAINING = re.compile(rb"\.(fit|apply_gradients)\(")
_MODEL = re.compile(r"\b(Model|Sequential)\(|\bapplications\.")
_TRACES = (".xplane.pb", ".xplane.pb.gz")
_RUN_FILES = {"run.json", "graph.json.gz"}

# Commands for each kind of find.
_COMMANDS = {
    "Models": (
        "analyze estimate {} --gpu t4  # does a step fit this card?",
        "analyze fit {} --gpu t4  # the largest batch",
        "analyze trace {}  # the tensors at the peak, measured here",
    ),
    "Scripts that train": ("analyze trace {}  # memory step by step, and leaks",),
    "Logs with an out-of-memory error": ("analyze oom {}  # the cause and the fix",),
    "Traces and estimates": ("analyze trace {}  # the tensors at the peak",),
}


def describe_folder(folder: Path) -> list[str]:
    """Return the lines about a project's folder, by kind of find; none if there is no find."""
    finds: dict[str, list[str]] = {}
    for kind, name in _search(folder):
        finds.setdefault(kind, []).append(name)

    lines = []
    for kind, names in finds.items():
        lines.append(kind)
        for name in names[:_MOST_SHOWN]:
            lines += [_fill_in(one, name) for one in _COMMANDS[kind]]

        if len(names) > _MOST_SHOWN:
            lines.append(f"  and {len(names) - _MOST_SHOWN} more")

        lines.append("")

    return lines


def _fill_in(command: str, name: str) -> str:
    """Return a command with its comment, if there is room for that."""
    line = f"  {command.format(shlex.quote(name))}"
    return line if len(line) <= _WIDTH else line.partition("  # ")[0]


def _search(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of the finds in a folder and below, until the time is over."""
    end_s = time.monotonic() + _SECONDS

    for place, folders, names in os.walk(folder):
        path = Path(place).relative_to(folder)

        kind = _judge_folder(Path(place), names)
        if kind and place != str(folder):
            folders.clear()  # its files are parts of it
            yield kind, path.as_posix()
            continue

        is_deep = len(path.parts) >= _MOST_DEPTH
        folders[:] = [
            one for one in folders if not (is_deep or _OTHER_FOLDERS.fullmatch(one))
        ]

        for name in sorted(names):
            if time.monotonic() > end_s:
                return

            yield from _judge_file(folder / path / name, (path / name).as_posix())


def _judge_folder(place: Path, names: list[str]) -> str:
    """Return the kind of a folder with these files: a model, a trace, or none."""
    if "saved_model.pb" in names:
        return "Models"

    is_logdir = (place / "plugins" / "profile").is_dir()
    is_trace = _RUN_FILES.issubset(names) or any(one.endswith(_TRACES) for one in names)

    return "Traces and estimates" if is_trace or is_logdir else ""


def _judge_file(path: Path, name: str) -> Iterator[tuple[str, str]]:
    if path.suffix == ".py":
        source = _read(path)
        if not _FRAMEWORK.search(source):
            return

        yield from (("Models", f"{name}:{model}") for model in _list_models(source))
        if _TRAINING.search(source):
            yield "Scripts that train", name

    elif path.suffix in (".keras", ".h5", ".hdf5"):
        yield "Models", name
    elif name.endswith(_TRACES):
        yield "Traces and estimates", name
    elif path.suffix in (".log", ".txt", ".out", ".err"):
        text = _read(path)
        if _OOM.search(text) and _OWN_OUTPUT not in text:
            yield "Logs with an out-of-memory error", name


def _read(path: Path) -> bytes:
    """Return the beginning of a regular file, or its end if it is long, as failures are last."""
    try:
        if not path.is_file():  # a pipe would block
            return b""

        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _MOST_BYTES, 0))

            return file.read()
    except OSError:
        return b""


def _list_models(source: bytes) -> Iterator[str]:
    """Yield the names that are a model, or a function without arguments that makes one."""
    try:
        tree = ast.parse(source)
        texts = [ast.unparse(node) for node in tree.body]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return

    for node, text in zip(tree.body, texts, strict=True):
        if not _MODEL.search(text):
            continue

        if isinstance(node, ast.Assign):
            yield from (one.id for one in node.targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.FunctionDef):
            own = node.args

            needed = len(own.posonlyargs + own.args) - len(own.defaults)
            if needed == 0 and None not in own.kw_defaults and "return " in text:
                yield node.name
