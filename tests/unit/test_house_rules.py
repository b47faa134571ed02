"""Rules for the package: lengths of functions, private names, and documents that name real files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from analyzer.model.contract.reading import read_table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "analyzer"
MOST_LINES = 60

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


def test_no_function_is_longer_than_60_lines() -> None:
    """The signature and the docstring do not count."""
    long = []
    for path in _modules():
        for node in ast.walk(_tree(path)):
            if isinstance(node, Function):
                assert node.end_lineno is not None
                first = node.body[0]
                has_docstring = ast.get_docstring(node) is not None
                before = first.end_lineno if has_docstring else first.lineno - 1
                assert before is not None
                count = node.end_lineno - before
                if count > MOST_LINES:
                    long.append(
                        f"{_name(path)}:{node.lineno} {node.name}: {count} lines"
                    )
    assert not long


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    folders = {path.relative_to(PACKAGE).parts[0] for path in _files()} - {
        "__init__.py",
        "__main__.py",
        "py.typed",
    }
    assert not {folder for folder in folders if f"`{folder}/`" not in text}


def test_the_import_contract_names_every_package() -> None:
    """A new package is judged too: only ``capture`` may import TensorFlow."""
    packages = {path.relative_to(PACKAGE).parts[0] for path in _modules()}
    packages -= {"__init__.py", "__main__.py"}
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    found = re.search(r"^source_modules = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    assert packages - set(re.findall(r'"analyzer\.(\w+)"', found[1])) == {"capture"}


PRIVATE_MODULES = (
    "tensorflow.python",
    "tensorflow.core",
    "tensorflow.compiler",
    "keras.src",
)
READERS = ("getattr", "hasattr", "setattr", "delattr")


def test_private_names_of_tensorflow_and_keras_stand_in_one_file() -> None:
    found = []
    for path in _modules():
        if (
            path.relative_to(PACKAGE).parts[0] != "capture"
            or path.stem == "private_names"
        ):
            continue
        for node in ast.walk(_tree(path)):
            for name in _private_names(node):
                found.append(f"{_name(path)}:{getattr(node, 'lineno', 0)} {name}")
    assert not found


def _private_names(node: ast.AST) -> Iterator[str]:
    """Yield what a node imports or reads of TensorFlow's or Keras' insides."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
        PRIVATE_MODULES
    ):
        yield str(node.module)
    if isinstance(node, ast.Import):
        yield from (
            one.name for one in node.names if one.name.startswith(PRIVATE_MODULES)
        )
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


_SHOWN_FIRST = {"does-not-fit", "out-of-memory"}  # findings whose action is in the text


def test_each_finding_has_an_action() -> None:
    """Each text with hyphens in ``explain`` is an id with a row, and each row belongs to an id."""
    texts = {
        node.value
        for path in (PACKAGE / "explain").rglob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    ids = {text for text in texts if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", text)}
    rows = set(read_table("report/actions.toml", dict[str, tuple[str, str, str]]))
    assert ids - rows == _SHOWN_FIRST
    assert rows <= texts
