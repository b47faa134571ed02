"""``analyze`` without arguments: commands for the models, scripts, logs and traces of this folder.

Files are read and parsed, never imported.
"""

import ast
import os
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SECONDS: Final = 0.5  # after which the search ends
_MOST_DEPTH: Final = 4  # of folders
_MOST_BYTES: Final = 1 << 20  # read of a file
_MOST_SHOWN: Final = 3  # of a kind
_OTHER_FOLDERS: Final = frozenset(
    {"__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv"}
)

_OOM: Final = re.compile(
    rb"OOM when allocating|RESOURCE_EXHAUSTED|ResourceExhausted|[Oo]ut of memory"
)
_LOGS: Final = (".log", ".txt", ".out", ".err")
_MODELS: Final = (".keras", ".h5", ".hdf5")
_TRACES: Final = (".xplane.pb", ".xplane.pb.gz")
_FRAMEWORK: Final = re.compile(
    rb"^\s*(import|from) (tensorflow|keras|tf_keras)\b", re.M
)
_MODEL_CALLS: Final = ("Model", "Sequential")


@dataclass(frozen=True, slots=True)
class Find:
    """A find of a kind, and the commands for it, each with its answer."""

    kind: str
    commands: tuple[tuple[str, str], ...]


def describe_folder(folder: Path) -> list[str]:
    """Return the lines about a project's folder, by kind of find; none if there is no find."""
    by_kind: dict[str, list[Find]] = {}
    for find in _search(folder):
        by_kind.setdefault(find.kind, []).append(find)

    lines: list[str] = []
    for kind, finds in by_kind.items():
        commands = [one for find in finds[:_MOST_SHOWN] for one in find.commands]
        width = max(len(command) for command, _ in commands)
        lines.append(kind)
        lines += [f"  {command:{width}}  {answer}" for command, answer in commands]

        if len(finds) > _MOST_SHOWN:
            lines.append(f"  and {len(finds) - _MOST_SHOWN} more")
        lines.append("")

    return lines


def _search(folder: Path) -> Iterator[Find]:
    """Yield the finds in a folder and below, the nearest first, until the time is over."""
    end_s = time.monotonic() + _SECONDS
    open_folders = [(folder, 0)]

    for place, depth in open_folders:
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            continue

        names = {entry.name for entry in entries}
        find = _judge_folder(place, _name(place, folder), names)
        if find is not None and place != folder:
            yield find
            continue  # its files are parts of it

        for entry in entries:
            if time.monotonic() > end_s:
                return

            is_other = entry.name.startswith(".") or entry.name in _OTHER_FOLDERS
            if entry.is_dir(follow_symlinks=False):
                if depth < _MOST_DEPTH and not is_other:
                    open_folders.append((Path(entry.path), depth + 1))
            elif not is_other:
                yield from _judge_file(Path(entry.path), folder)


def _name(path: Path, folder: Path) -> str:
    return shlex.quote(path.relative_to(folder).as_posix())


def _judge_folder(place: Path, name: str, names: set[str]) -> Find | None:
    """Return a trace or a saved model that a folder with these entries is, if it is one."""
    if "saved_model.pb" in names:
        return _model(name)

    is_run = {"run.json", "graph.json.gz"} <= names
    is_logdir = "plugins" in names and (place / "plugins" / "profile").is_dir()
    if is_run or is_logdir or any(one.endswith(_TRACES) for one in names):
        return _trace(name)

    return None


def _judge_file(path: Path, folder: Path) -> Iterator[Find]:
    name = _name(path, folder)
    if path.suffix == ".py":
        yield from _judge_source(_read(path), name)
    elif path.suffix in _MODELS:
        yield _model(name)
    elif path.name.endswith(_TRACES):
        yield _trace(name)
    elif path.suffix in _LOGS and _OOM.search(_read(path)):
        commands = ((f"analyze oom {name}", "why it ran out of memory, and the fix"),)
        yield Find("Logs with an out-of-memory error", commands)


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


def _judge_source(source: bytes, name: str) -> Iterator[Find]:
    """Yield the models of a Python file, or the file as a script that trains."""
    if not _FRAMEWORK.search(source):
        return

    try:
        tree = ast.parse(source)
        models = [one for node in tree.body for one in _list_models(node)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return

    for model in models:
        yield _model(f"{name}:{model}")

    is_training = any(
        isinstance(node, ast.Attribute) and node.attr in ("fit", "apply_gradients")
        for node in ast.walk(tree)
    )
    if is_training:
        answer = "its memory step by step, and leaks"
        yield Find("Scripts that train", ((f"analyze trace {name}", answer),))


def _list_models(node: ast.stmt) -> Iterator[str]:
    """Yield the names of a statement that are a model, or a function that returns one."""
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    names = [ast.unparse(call.func) for call in calls]
    has_model = any(name.rpartition(".")[2] in _MODEL_CALLS for name in names)
    has_model = has_model or any("applications." in name for name in names)
    if not has_model:
        return

    if isinstance(node, ast.Assign):
        yield from (one.id for one in node.targets if isinstance(one, ast.Name))
    elif isinstance(node, ast.FunctionDef):
        arguments = node.args
        needed = len(arguments.posonlyargs + arguments.args) - len(arguments.defaults)
        is_returned = any(
            isinstance(one, ast.Return) and one.value for one in ast.walk(node)
        )
        if needed == 0 and None not in arguments.kw_defaults and is_returned:
            yield node.name


def _model(name: str) -> Find:
    return Find(
        "Models",
        (
            (f"analyze estimate {name} --gpu t4", "does a step fit this card?"),
            (f"analyze fit {name} --gpu t4", "the largest batch"),
            (f"analyze trace {name}", "the tensors at the peak, measured here"),
        ),
    )


def _trace(name: str) -> Find:
    answer = "the tensors at its peak, and how to reduce it"
    return Find("Traces and estimates", ((f"analyze trace {name}", answer),))
