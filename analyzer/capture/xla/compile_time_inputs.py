"""Find the inputs of a function that XLA compiles in as values: a change of them recompiles it.

Some ops need an input's value when they are compiled, such as the shape of a ``Reshape``, and all values
that it is computed from, except behind an op that reads only shapes (``BackwardsConstAnalysis`` in
``compiler/tf2xla/const_analysis.cc``). The arguments of the function that this reaches are part of the
compiled function's key with their values (``compiler/jit/device_compilation_cluster_signature.cc``),
variables included (``kConstantResource``). A value that passes through a branch makes all inputs of the
branch constant: a variable that the step itself updates may become one, and then every step compiles.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

from analyzer.capture.private_names import op_def_registry
from analyzer.model.contract.graph_note import read_op_types

_METADATA: Final = read_op_types("model/graph/graph_op_types.toml")["types"]["meta"]
_LOOPS: Final = frozenset({"While", "StatelessWhile"})
_PASS_ON: Final = _LOOPS | {"IdentityN"}
_CALLS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@cache
def _load_needs() -> Mapping[str, frozenset[str]]:
    """Return op type -> names of the inputs that XLA must know to compile it.

    Source: ``CompileTimeConstantInput`` in ``compiler/tf2xla/kernels``.
    """
    text = (
        files("analyzer.capture.xla")
        .joinpath("compile_time_inputs.csv")
        .read_text("utf-8")
    )
    needs: dict[str, frozenset[str]] = {}
    for row in csv.DictReader(text.splitlines()):
        inputs = frozenset(row["inputs"].split())
        needs |= dict.fromkeys(row["ops"].split(), inputs)
    return needs


@dataclass
class FixedInputs:
    """Finds the inputs of functions that XLA compiles in as values."""

    graphs: Mapping[str, Any]
    _results: dict[str, dict[int, str]] = field(default_factory=dict)

    def find(self, name: str) -> dict[int, str]:
        """Return argument -> type and name of the op that must know it, for a function's name."""
        if name not in self._results:
            self._results[name] = {}  # for a function that calls itself
            if name in self.graphs:
                self._results[name] = self._analyze(self.graphs[name])
        return self._results[name]

    def _analyze(self, graph: Any) -> dict[int, str]:
        reasons: dict[str, str] = {}  # by node: the op that must know its value
        # A function's graph lists an op after its inputs.
        for op in reversed(graph.get_operations()):
            if op.type in _METADATA:
                continue
            needs = dict(self._find_needs(op))
            if op.name in reasons:
                needs = dict.fromkeys(range(len(op.inputs)), reasons[op.name])
            for index, reason in needs.items():
                source = _find_source(op.inputs[index])
                reasons.setdefault(source.op.name, reason)

        found = {}
        for index, tensor in enumerate(graph.inputs):
            if tensor.op.name in reasons:
                found[index] = reasons[tensor.op.name]
        return found

    def _find_needs(self, op: Any) -> Iterator[tuple[int, str]]:
        """Yield the inputs of an op whose values must be known, and the op that needs them."""
        attrs = op.node_def.attr
        if op.type in _CALLS:
            yield from self.find(attrs["f"].func.name).items()
        elif op.type in ("If", "StatelessIf", "Case", "StatelessCase"):
            branches = [attrs[name].func for name in ("then_branch", "else_branch")]
            for function in attrs["branches"].list.func or branches:
                # A branch's arguments follow the condition among the inputs.
                for index, reason in self.find(function.name).items():
                    yield index + 1, reason
        elif op.type in _LOOPS:
            body: Any = self.graphs.get(attrs["body"].func.name)
            for part in ("cond", "body") if body is not None else ():
                for index, reason in self.find(attrs[part].func.name).items():
                    # Only inputs that the body passes on unchanged can be known.
                    if (
                        index < len(body.outputs)
                        and body.outputs[index] is body.inputs[index]
                    ):
                        yield index, reason
        elif op.type in _load_needs():
            for index in _find_positions(op, _load_needs()[op.type]):
                yield index, f"{op.type} {op.name}"


def _find_source(tensor: Any) -> Any:
    """Return the tensor that an ``IdentityN`` or a loop passes on (``IsConstTraversableOpType``)."""
    while tensor.op.type in _PASS_ON:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _find_positions(op: Any, names: frozenset[str]) -> Iterator[int]:
    """Yield the positions of an op's inputs with these names."""
    definition = op_def_registry.get(op.type)
    attrs = op.node_def.attr
    position = 0
    for argument in definition.input_arg if definition is not None else ():
        count = 1
        if argument.number_attr:
            count = int(attrs[argument.number_attr].i)
        elif argument.type_list_attr:
            count = len(attrs[argument.type_list_attr].list.type)
        if argument.name in names:
            yield from range(position, position + count)
        position += count
