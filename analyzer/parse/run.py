"""The note that our capture leaves beside a trace, and the graph with it."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from analyzer.errors import TraceError
from analyzer.graph.ops import Op, from_json
from analyzer.graph.phases import TracedGraph, TracedOp
from analyzer.parse.hlo import Hlo, read_hlo

_SCHEMA_VERSION: Final = 1
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the step.

    Attributes:
        path: Its name.
        dtype, shape: Of its value; shape None where not known.
        category: Whose it is, as :class:`analyzer.model.Category` names it.
        role: Finer than the category, in words; may be empty.
        trainable: Whether gradients are taken with respect to it.
        argument: Index among the step function's arguments, None where it is not captured.
    """

    path: str
    dtype: str
    shape: tuple[int, ...] | None
    category: str
    role: str
    trainable: bool
    argument: int | None


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor that the step is fed, with the address of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int | None


@dataclass(frozen=True, slots=True)
class Birth:
    """How one variable came to be.

    Attributes:
        variable: Index of the variable in the note, None where the step does not know it.
        events: (number of a buffer, its bytes) where it is born, (number, 0) where it dies; the one
            that lives on is the value.
        traced: Made while the step was traced, as slots are.
        sharing: Equal for variables that begin with the same value.
    """

    variable: int | None
    events: tuple[tuple[int, int], ...]
    traced: bool
    sharing: str


@dataclass(frozen=True, slots=True)
class CompiledNote:
    """A function of the step that XLA compiles.

    Attributes:
        ops: Names of the ops that call it.
        function: Its name.
        platform: The device that ``plan`` was compiled for.
        module: File with the module before XLA's passes (gzip, HloModuleProto); None where not kept.
        plan: The compiled module with its buffer assignment; None where not kept.
        fixed: The inputs of such an op whose values are compiled in, and the op that needs each.
        compilations: How often it was compiled while it ran; 0 where nothing ran.
    """

    ops: tuple[str, ...]
    function: str
    platform: str
    module: Path | None
    plan: Hlo | None
    fixed: tuple[tuple[int, str], ...] = ()
    compilations: int = 0


@dataclass(frozen=True, slots=True)
class RunNote:
    """What the capture knew and the trace does not say.

    Attributes:
        raw: The file as it is.
        variables: The step's variables.
        inputs: What the step is fed.
        snapshots: For each moment (before the first step, after each) the variables' addresses.
        gradients: Graph tensors that are gradients of parameters.
        nested_gradients: The same inside functions.
        scopes: Name scope -> (kind, path) of who opened it.
        eager_gradients: Index of the marker -> addresses of gradients.
        ops: The graph; empty for an eager step.
        traced: The graph as it was traced, with the functions in it.
        births: How the variables came to be, in order; empty where the trace shows it.
        inside: The ops of functions that run as one op, as they were traced; see ``compiled``.
        compiled: The functions of the step that XLA compiles.
        compiling: For each of them, what lowering it asks for: (number of a buffer, its bytes) where
            it is born, (number, 0) where it dies.
    """

    raw: Mapping[str, Any]
    variables: tuple[Variable, ...] = ()
    inputs: tuple[Input, ...] = ()
    snapshots: tuple[tuple[int | None, ...], ...] = ()
    gradients: frozenset[str] = frozenset()
    nested_gradients: frozenset[str] = frozenset()
    scopes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    eager_gradients: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    ops: tuple[Op, ...] = ()
    traced: tuple[TracedGraph, ...] = ()
    births: tuple[Birth, ...] = ()
    inside: tuple[Op, ...] = ()
    compiled: tuple[CompiledNote, ...] = ()
    compiling: tuple[tuple[tuple[int, int], ...], ...] = ()


def read_run(path: Path) -> RunNote:
    """Read ``run.json`` and the graph that it names.

    Raises:
        TraceError: they are damaged, or were written by a newer version.
    """
    try:
        raw = _load(path.read_bytes())
        if not isinstance(raw, dict):
            raise TypeError("not an object")
        if raw.get("schema_version", 0) > _SCHEMA_VERSION:
            raise TraceError(
                f"{path} was written by a newer version.", hint="Upgrade tf-memory-analyzer."
            )
        graph = _read_graph(path, raw.get("graph"))
        return RunNote(
            raw=raw,
            variables=tuple(_variable(row) for row in raw.get("variables", ())),
            inputs=tuple(
                Input(str(row["name"]), str(row["dtype"]), tuple(row["shape"]), row["address"])
                for row in raw.get("inputs", ())
            ),
            snapshots=tuple(tuple(row) for row in raw.get("snapshots", ())),
            gradients=frozenset(raw.get("gradients", ())),
            nested_gradients=frozenset(raw.get("nested_gradients", ())),
            scopes={
                str(scope): (str(kind), str(owner))
                for scope, (kind, owner) in raw.get("scopes", {}).items()
            },
            eager_gradients={
                int(mark): tuple(found) for mark, found in raw.get("eager_gradients", {}).items()
            },
            ops=tuple(from_json(graph.get("ops", []))),
            traced=tuple(_traced(row) for row in graph.get("traced", ())),
            births=tuple(_birth(row) for row in raw.get("births", ())),
            inside=tuple(from_json(graph.get("inside", []))),
            compiled=tuple(_compiled(path.parent, row) for row in raw.get("xla", ())),
            compiling=tuple(_requests(one) for one in graph.get("compiling", ())),
        )
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        EOFError,
        RecursionError,
        zlib.error,
    ) as error:
        raise TraceError(
            f"{path} is damaged ({type(error).__name__}: {error}).",
            hint="Capture again, or open the .xplane.pb alone by moving it elsewhere.",
        ) from None


def read_kind(path: Path) -> str:
    """Return what a ``run.json`` is the note of, ``static`` for an estimate, without reading it all.

    Raises:
        TraceError: it is damaged, or was written by a newer version.
    """
    try:
        raw = _load(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raw = read_run(path).raw
    return str(raw.get("kind", ""))


def _load(content: bytes) -> Any:
    """Return the JSON values; half a character, which JSON can hold and no file can, becomes ``?``."""
    values = json.loads(content)
    return _whole(values) if _SURROGATE.search(content) else values


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def _variable(row: Mapping[str, Any]) -> Variable:
    return Variable(
        path=str(row["path"]),
        dtype=str(row["dtype"]),
        shape=None if row["shape"] is None else tuple(row["shape"]),
        category=str(row["category"]),
        role=str(row.get("role", "")),
        trainable=bool(row.get("trainable")),
        argument=row.get("argument"),
    )


def _birth(row: Mapping[str, Any]) -> Birth:
    return Birth(
        variable=row["variable"],
        events=_requests(row["events"]),
        traced=bool(row["traced"]),
        sharing=str(row["sharing"]),
    )


def _requests(rows: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(number), int(size_bytes)) for number, size_bytes in rows)


def _compiled(folder: Path, row: Mapping[str, Any]) -> CompiledNote:
    plan, module = row.get("plan"), row.get("module")
    return CompiledNote(
        ops=tuple(str(name) for name in row["ops"]),
        function=str(row["function"]),
        platform=str(row["platform"]),
        module=_inside(folder, module) if module else None,
        plan=read_hlo(gzip.decompress(_inside(folder, plan).read_bytes())) if plan else None,
        fixed=tuple((int(index), str(why)) for index, why in row.get("fixed", ())),
        compilations=int(row.get("compilations", 0)),
    )


def _inside(folder: Path, name: Any) -> Path:
    if Path(str(name)).name != str(name):
        raise ValueError(f"{name} lies outside the folder")
    return folder / str(name)


def _read_graph(path: Path, name: Any) -> Mapping[str, Any]:
    if not name:
        return {}
    content = _inside(path.parent, name).read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    graph = _load(content)
    if "ops" not in graph:
        raise KeyError("ops")
    return dict(graph)


def _traced(row: Mapping[str, Any]) -> TracedGraph:
    ops = tuple(TracedOp(op, tuple(inputs), tuple(calls)) for op, inputs, calls in row["ops"])
    return TracedGraph(str(row["function"]), ops)
