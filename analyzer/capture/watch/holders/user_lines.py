"""Lines of the user's code: the calling line, and statements that make a container grow.

Needs no TensorFlow.
"""

import ast
import inspect
import linecache
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

from analyzer.capture.run.source_frames import is_library, shorten_path

_PUTS: Final = frozenset(
    {"append", "extend", "insert", "add", "appendleft", "setdefault", "update"}
    | {"put", "put_nowait", "push"}
)
"""Methods that make lists, sets, dictionaries, deques and queues grow."""

_TAKES: Final = frozenset({"pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait"})
"""Methods that remove entries of containers."""

_NUMBERS: Final = frozenset({"float", "int", "bool", "str", "len", "repr", "item"})
"""Functions and methods that return a Python number or text."""

_Put = tuple[ast.expr, ast.expr | None]
"""The grown container, and the added value; None if there are several values."""


def find_calling_line() -> str:
    """Return ``file:line`` of the innermost line of the user's code on the stack, or ""."""
    found = find_calling_frame(inspect.currentframe())
    return "" if found is None else format_line(found)


def find_calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code from ``frame`` on, or None."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def format_line(frame: FrameType) -> str:
    """Return ``file:line`` of a frame."""
    return f"{shorten_path(frame.f_code.co_filename)}:{frame.f_lineno}"


@lru_cache(maxsize=4096)
def is_own(filename: str) -> bool:
    """Return whether a file of code is the user's."""
    return not is_library(filename)


def get_code(function: Any) -> CodeType | None:
    """Return the code of a function without its decorators; None if it has none."""
    function = getattr(function, "func", function)  # functools.partial
    try:
        function = inspect.unwrap(function)
    except ValueError:  # a circle
        return None
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return code if isinstance(code, CodeType) else None


def find_growing_lines(
    filename: str, name: str, scope: str = "", keys: frozenset[Any] = frozenset()
) -> list[int]:
    """Return the lines that add something to the container ``name``, the likely ones first.

    Such as ``name.append(…)``, ``name[…] = …`` or ``name = name + …``, also as an attribute:
    ``self.name.append(…)``. Lines with one of ``keys`` come first (``name["outputs"].append(…)``), lines
    that add a number last (``name.append(float(…))``). A function ``scope`` is searched before the file.
    """
    tree = _parse_file(filename)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inner = [one for one in ast.walk(tree) if isinstance(one, functions) and one.name == scope]
    for root in (*inner, tree):
        ranks: dict[int, tuple[bool, bool]] = {}
        for node in ast.walk(root):
            if put := _find_put(node, name):
                owner, value = put
                rank = (not _list_keys(owner) & keys, _is_number(value))
                ranks[owner.lineno] = min(rank, ranks.get(owner.lineno, rank))
        if ranks:
            return sorted(ranks, key=lambda line: (ranks[line], line))
    return []


def removes_entries(filename: str, name: str) -> bool:
    """Return whether a statement removes entries of the container ``name``."""
    for node in ast.walk(_parse_file(filename)):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _TAKES:
                owners = [owner]
            case ast.Delete(targets=targets):
                owners = [one for one in targets if isinstance(one, ast.Subscript)]
            case ast.Assign(targets=[target], value=ast.Subscript(value=owner, slice=ast.Slice())):
                owners = [owner] if _get_name(target) == name else []
            case _:
                continue
        if name in map(_get_name, owners):
            return True
    return False


def find_binding_lines(filename: str, name: str) -> list[int]:
    """Return the lines that bind or define ``name`` or such an attribute, those in loops first."""
    lines, repeated = set(), set()
    for root in ast.walk(_parse_file(filename)):
        match root:
            case ast.Module() | ast.For() | ast.While():
                bound = _find_bindings(root, name)
                lines |= bound
                repeated |= set() if isinstance(root, ast.Module) else bound
            case ast.FunctionDef() | ast.ClassDef() if root.name == name:
                lines.add(root.lineno)
    return sorted(lines, key=lambda line: (line not in repeated, line))


def _find_bindings(root: ast.AST, name: str) -> set[int]:
    targets: list[ast.expr] = []
    for node in ast.walk(root):
        match node:
            case ast.Assign():
                targets += node.targets
            case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr() | ast.For():
                targets.append(node.target)
            case ast.withitem(optional_vars=ast.expr() as target):
                targets.append(target)
    parts = [part for target in targets for part in ast.walk(target)]
    return {one.lineno for one in parts if isinstance(one, ast.expr) and _get_name(one) == name}


def _find_put(node: ast.AST, name: str) -> _Put | None:
    """Return the addition of a statement to the container ``name``; None if it adds nothing."""
    puts: list[_Put] = []
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=args) if method in _PUTS:
            puts = [(owner, args[-1] if args else None)]
        case ast.Assign(targets=targets, value=value):
            is_longer = _extends(value, name)
            puts = [(one, value) for one in targets if is_longer or isinstance(one, ast.Subscript)]
        case ast.AugAssign(target=ast.Subscript() as target, value=value):
            puts = [(target, value)]
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            puts = [(target, value)]
    return next((put for put in puts if _get_name(put[0]) == name), None)


def _extends(value: ast.expr, name: str) -> bool:
    """Return whether a value extends ``name``: ``name + …``, ``(*name, …)``, ``{**name}``."""
    unpacked: list[ast.expr] = []
    match value:
        case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
            return name in (_get_name(left), _get_name(right))
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            unpacked = [one.value for one in parts if isinstance(one, ast.Starred)]
        case ast.Dict(keys=keys, values=values):
            unpacked = [one for key, one in zip(keys, values, strict=True) if key is None]
    whole = [one for one in unpacked if isinstance(one, ast.Name | ast.Attribute)]
    return name in map(_get_name, whole)  # and not in a part of it: (row, *last[:2])


def _list_keys(node: ast.expr) -> set[Any]:
    """Return the constant keys in an expression such as ``a["b"].c[…]``."""
    keys = set()
    while True:
        match node:
            case ast.Subscript(value=inner, slice=key) | ast.Call(func=inner, args=[key, *_]):
                if isinstance(key, ast.Constant):  # also of table.setdefault("b", [])
                    keys.add(key.value)
            case ast.Attribute(value=inner) | ast.Call(func=inner):
                pass
            case _:
                return keys
        node = inner


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
