"""Lines of the user's code: the calling line, and statements that make a container grow.

Needs no TensorFlow.
"""

import ast
import inspect
import linecache
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from analyzer.capture.run.source_frames import is_library, shorten_path

# Methods that make lists, sets, dictionaries, deques and queues grow.
_PUTS = frozenset(
    {"append", "extend", "insert", "add", "appendleft", "setdefault", "update"}
    | {"put", "put_nowait", "push"}
)

# Methods that remove entries of containers.
_TAKES = frozenset({"pop", "popleft", "popitem", "clear", "remove", "discard"})

# Functions and methods that return a Python number or text.
_NUMBERS = frozenset({"float", "int", "len", "str", "item"})


def find_calling_line() -> str:
    """Return ``file:line`` of the innermost line of the user's code on the stack, or ""."""
    frame = find_calling_frame(inspect.currentframe())
    return "" if frame is None else format_line(frame)


def is_for_logs() -> bool:
    """Return whether Keras reads a value of a tensor: it does so for its logs after each step.

    The innermost code outside TensorFlow and this package reads it.
    """
    frame = inspect.currentframe()
    name = __name__
    while frame is not None and name.startswith(("analyzer.", "tensorflow.")):
        name = frame.f_globals["__name__"]
        frame = frame.f_back

    return "keras." in name  # also tf_keras


def find_calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code from ``frame`` on, or None."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back

    return frame


def format_code(code: CodeType) -> str:
    """Return ``file:line`` of a definition."""
    return f"{shorten_path(code.co_filename)}:{code.co_firstlineno}"


def format_line(frame: FrameType) -> str:
    """Return ``file:line`` of a frame."""
    return f"{shorten_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def is_own(filename: str) -> bool:
    """Return whether a file of code is the user's."""
    return not is_library(filename)


def list_codes(function: Any, depth: int = 3) -> Iterator[CodeType]:
    """Yield the codes of a function without its decorators and of the functions that it encloses.

    Keras' loops for training and validation have one code and enclose different steps.
    """
    function = getattr(function, "func", function)  # functools.partial
    try:
        function = inspect.unwrap(function)
    except ValueError:  # a circle
        return

    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")

    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield code

        for cell in (getattr(function, "__closure__", None) or ()) if depth else ():
            with suppress(ValueError):  # not bound yet
                enclosed = inspect.unwrap(cell.cell_contents)
                if inspect.isroutine(enclosed):
                    yield from list_codes(enclosed, depth - 1)


def find_growing_line(filename: str, name: str, function: str) -> int:
    """Return the line that adds to the container ``name``, as a variable or attribute; 0 if none.

    A line of ``function`` comes first, and a line that adds a number (``name.append(float(…))``) last.
    """
    tree = _parse_file(filename)
    roots: list[ast.AST] = [tree]

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            roots.insert(0, node)

    for root in roots:
        puts = [put for put in _find_puts(root) if _get_name(put[0]) == name]
        if puts:
            owner, _ = min(puts, key=lambda put: (_is_number(put[1]), put[0].lineno))
            return owner.lineno

    return 0


def _find_puts(root: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each container that a statement makes longer, and the added value if it is one."""
    for node in ast.walk(root):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=args):
                if method in _PUTS:
                    yield owner, args[-1] if args else None
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                yield target, value
            case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add())):
                if _get_name(left) == _get_name(target):
                    yield target, None
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                yield target, value


def removes_entries(filename: str, name: str) -> bool:
    """Return whether a statement removes entries of the container ``name``."""
    owners: list[ast.expr] = []
    for node in ast.walk(_parse_file(filename)):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if (
                method in _TAKES
            ):
                owners.append(owner)
            case ast.Subscript(value=owner, ctx=ast.Del()):
                owners.append(owner)
            case ast.Assign(
                targets=[target], value=ast.Subscript(value=owner, slice=ast.Slice())
            ):
                if _get_name(target) == _get_name(owner):
                    owners.append(owner)

    return name in map(_get_name, owners)


def find_binding_line(filename: str, name: str) -> int:
    """Return a line that binds or defines ``name`` or such an attribute, in a loop if any; or 0."""
    tree = _parse_file(filename)
    lines = set(_find_bindings(tree, name))
    in_loops: set[int] = set()

    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                lines |= {node.lineno} if node.name == name else set()
            case ast.For() | ast.While():
                in_loops.update(_find_bindings(node, name))

    return min(in_loops or lines, default=0)


def _find_bindings(root: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(root):
        match node:
            case (
                ast.Name(id=found, ctx=ast.Store())
                | ast.Attribute(attr=found, ctx=ast.Store())
            ):
                if found == name:
                    yield node.lineno


def _is_number(value: ast.expr | None) -> bool:
    match value:
        case ast.Constant() | ast.JoinedStr():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _NUMBERS

    return False


def _get_name(node: ast.AST) -> str:
    """Return the last name of ``a.b.c``, ``c[…]`` or ``c.setdefault(…)``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=owner):
            return _get_name(owner)
        case ast.Call(func=ast.Attribute(value=owner, attr="setdefault" | "get")):
            return _get_name(owner)

    return ""


@lru_cache(maxsize=64)
def _parse_file(filename: str) -> ast.Module:
    """Return the syntax tree of a file; an empty one if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
