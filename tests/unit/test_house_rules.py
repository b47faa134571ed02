"""Rules for the package: lengths of functions, private names, and documents that name real files."""

import ast
import re
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
                first = node.body[0]
                has_docstring = ast.get_docstring(node) is not None
                before = first.end_lineno if has_docstring else first.lineno - 1
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
    assert packages - set(re.findall(r'"analyzer\.(\w+)"', found[1])) == {"capture"}


# A private attribute of TensorFlow or Keras, or one of their modules, in a string; Ruff finds
# those in code (SLF001, TID251).
PRIVATE = re.compile(
    r'attr\([^"]*, "_[a-z]\w*"|"tensorflow\.(?:python|core|compiler)\.|"keras\.src\.'
)


def test_private_names_of_tensorflow_and_keras_stand_in_one_file() -> None:
    files = (PACKAGE / "capture").rglob("*.py")
    texts = {file.stem: file.read_text("utf-8") for file in files}
    assert [name for name in texts if PRIVATE.search(texts[name])] == ["private_names"]


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
