"""What keeps the package easy to find one's way in: names, sizes, what a function says of itself."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "analyzer"
MOST_FILES = 12
MOST_LINES = 60
SHORT_LINES = 50  # with which a reason to be long is out of date
FEW_PARAMETERS = 2

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _files() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix not in (".pyc", ".so", ".nbi", ".nbc")
    )


def _modules() -> list[Path]:
    return [path for path in _files() if path.suffix == ".py"]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _functions(node: ast.AST, *, public: bool = True) -> Iterator[tuple[Function, bool]]:
    """Yield every function below a node, and whether a caller from elsewhere may know of it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, public and not child.name.startswith("_")
            yield from _functions(child, public=False)
        else:
            known = public and not (isinstance(child, ast.ClassDef) and child.name.startswith("_"))
            yield from _functions(child, public=known)


def test_no_folder_holds_more_files_than_one_can_overlook() -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in _files():
        counts[_name(path.parent)] += path.name != "__init__.py"
    crowded = {name: count for name, count in counts.items() if count > MOST_FILES}
    assert not crowded, crowded


def test_no_two_folders_hold_a_file_of_one_name() -> None:
    """In one folder a page's parts, or a C source and its header, may share theirs."""
    places: dict[str, set[str]] = defaultdict(set)
    for path in _files():
        if path.stem != "__init__" and not path.name.startswith("."):
            places[path.stem].add(_name(path.parent))
    assert not {name: folders for name, folders in places.items() if len(folders) > 1}


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in _modules():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_name(path))
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert not shared, shared


def test_a_long_function_says_why_and_no_short_one_does() -> None:
    long = []
    for path in _modules():
        lines = path.read_text("utf-8").splitlines()
        for function, _ in _functions(_tree(path)):
            assert function.end_lineno is not None
            count = function.end_lineno - function.lineno + 1
            said = any(
                re.match(r"\s*# Long: \w", lines[at])
                for at in (function.lineno - 2, function.body[0].lineno - 2)
            )
            if (count > MOST_LINES and not said) or (said and count <= SHORT_LINES):
                long.append(f"{_name(path)}:{function.lineno} {function.name}: {count} lines")
    assert not long


def test_a_public_function_of_several_parameters_describes_each() -> None:
    silent = []
    for path in _modules():
        for function, public in _functions(_tree(path)):
            given = function.args
            every = [
                *given.posonlyargs,
                *given.args,
                *given.kwonlyargs,
                *(one for one in (given.vararg, given.kwarg) if one is not None),
            ]
            names = [one.arg for one in every if one.arg not in ("self", "cls")]
            if not public or len(names) <= FEW_PARAMETERS or _is_command(function):
                continue
            place = f"{_name(path)}:{function.lineno} {function.name}"
            described = _described(ast.get_docstring(function) or "")
            silent += [f"{place}: {name}" for name in names if name not in described]
    assert not silent


def _is_command(function: Function) -> bool:
    """Say whether each parameter carries its help text for the command line."""
    notes = [one.annotation for one in (*function.args.args, *function.args.kwonlyargs)]
    return all(
        isinstance(note, ast.Name)
        or (isinstance(note, ast.Attribute) and isinstance(note.value, ast.Name))
        or (isinstance(note, ast.Subscript) and ast.unparse(note.value) == "Annotated")
        for note in notes
        if note is not None
    ) and any("typer." in ast.unparse(note) for note in notes if note is not None)


def _described(docstring: str) -> set[str]:
    """Return the names that a docstring's ``Args:`` describes; several may share a line."""
    found = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n)+)", docstring, re.MULTILINE)
    if found is None:
        return set()
    heads = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*):", found[1], re.MULTILINE)
    return {name.strip(" *") for head in heads for name in head.split(",")}


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in _files()} - {"."}
    assert not {folder for folder in folders if f"`{folder}/`" not in text}


def test_the_documents_name_files_that_are_there() -> None:
    """A file of the package that a document names in full exists."""
    known = {path.relative_to(PACKAGE).as_posix() for path in _files()}
    names = {path.name for path in _files()}
    roots = {path.name for path in PACKAGE.iterdir()}
    wrong = []
    for document in (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"):
        for given in re.findall(r"`([\w/]+\.(?:py|csv|js))`", document.read_text("utf-8")):
            name = given.removeprefix("analyzer/")
            if "/" in name and name.split("/")[0] in roots:
                wrong += [given] if name not in known else []
            elif "/" not in name:
                wrong += [given] if name not in names else []
    assert not wrong


PLAIN = {
    "units",
    "errors",
    "user_cache",
    "parent_death",
    "interrupts",
    "choice",
    "version",
    "gc_pause",
}
"""Modules below all rooms."""

FOR_CAPTURE = {"capture", "contract", "parse", "graph", "gpus"} | PLAIN
"""What a capture may import whole; of the compiler its flags alone."""


def test_the_import_contracts_name_every_room() -> None:
    """A room that came later is judged too: the lists of the two forbidding contracts hold it."""
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in _modules()} - {
        "__init__"
    }
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    without_tensorflow, of_capture = (
        set(re.findall(r'"analyzer\.(\w+)"', part))
        for part in (_between(text, "source_modules"), _between(text, "forbidden_modules"))
    )
    assert rooms - without_tensorflow == {"capture"}
    assert rooms - of_capture == FOR_CAPTURE


def _between(text: str, name: str) -> str:
    """Return the first list of that name that has a line for each entry."""
    found = re.search(rf"^{name} = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


PRIVATE_MODULES = ("tensorflow.python", "tensorflow.core", "tensorflow.compiler", "keras.src")
READERS = ("getattr", "hasattr", "setattr", "delattr")


def test_private_names_of_tensorflow_and_keras_stand_in_one_file() -> None:
    found = []
    for path in _modules():
        if path.relative_to(PACKAGE).parts[0] != "capture" or path.stem == "private_names":
            continue
        for node in ast.walk(_tree(path)):
            for name in _private_names(node):
                found.append(f"{_name(path)}:{getattr(node, 'lineno', 0)} {name}")
    assert not found


def _private_names(node: ast.AST) -> Iterator[str]:
    """Yield what a node imports or reads of TensorFlow's or Keras' insides."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_MODULES):
        yield str(node.module)
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names if one.name.startswith(PRIVATE_MODULES))
    if isinstance(node, ast.Constant) and str(node.value).startswith(PRIVATE_MODULES):
        yield str(node.value)
    if isinstance(node, ast.Attribute) and _is_private(node.attr):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner not in ("self", "cls", "os", "sys", "atexit"):
            yield ast.unparse(node)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in READERS
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and _is_private(str(node.args[1].value))
    ):
        yield ast.unparse(node)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
