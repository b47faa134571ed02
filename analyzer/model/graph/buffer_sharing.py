"""Tensors that share one buffer.

A kernel may pass its input's buffer on: it only changes the view (``Reshape``), moves the tensor
through control flow (``Switch``), or writes in place because no other op needs the input
(*forwarding*, which shows in a trace as an output without an allocation).

A loop carries the cache of keys and values (KV cache) of a step that generates tokens. Each token
writes one place of it (``ops.slice_update`` in keras-hub's ``CachedMultiHeadAttention``), and TensorFlow
makes a new tensor for that: the parts of a layer, their updated copies, and the sum of all layers count.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from analyzer.model.contract.run_note import (
    ARGUMENT_TYPES,
    Op,
    op_types,
    read_op_types,
    split_tensor,
)
from analyzer.model.graph.graph_index import NO_GRAPH, GraphIndex, is_float, reach

_TABLE = read_op_types("model/graph/graph_op_types.toml")["types"]
ALIAS_OPS = _TABLE["aliases"]
_LIST_OPS = _TABLE["lists"]


class Sharing:
    """Sets of tensors that share a buffer."""

    def __init__(self, structure: GraphIndex, own: Collection[str]) -> None:
        """Build the sets; an output outside ``own`` must lie in the buffer of one of its op's inputs.

        A tensor with which several loops start, such as zeros or an empty list, joins no set.
        """
        self._structure = structure
        self._parent: dict[str, str] = {}
        self._sizes: dict[str, int] = {}

        for op in structure.ops.values():
            if not op.outputs:
                continue

            for tensor, index in self._find_shared(op, own):
                users = structure.consumers.get(tensor, ())
                starts = [name for name in users if structure.ops[name].type == "Enter"]
                if op.name in starts and len(starts) > 1:
                    continue

                one = self.root(tensor)
                other = self.root(f"{op.name}:{index}")
                self._parent[one] = one
                self._parent[other] = one

        self._members: dict[str, list[str]] = {}

        for tensor in self._parent:
            self._members.setdefault(self.root(tensor), []).append(tensor)

    def root(self, tensor: str) -> str:
        """Return the representative of the set that contains ``tensor``."""
        parent = self._parent
        while (above := parent.get(tensor, tensor)) != tensor:
            parent[tensor] = parent.get(above, above)
            tensor = above

        return tensor

    def members(self, tensor: str) -> Sequence[str]:
        """Return all tensors that share ``tensor``'s buffer, including itself."""
        return self._members.get(self.root(tensor), [tensor])

    def consumers(self, tensor: str) -> Iterable[str]:
        """Return the names of the ops that use the buffer, except ops that only pass it on."""
        structure = self._structure
        users: dict[str, None] = {}

        for one in self.members(tensor):
            users |= dict.fromkeys(structure.consumers.get(one, ()))

        return [name for name in users if structure.ops[name].type not in ALIAS_OPS]

    def _find_shared(self, op: Op, own: Collection[str]) -> Iterable[tuple[str, int]]:
        """Yield inputs of an op with the index of an output in the same buffer."""
        outputs = range(len(op.outputs))

        if op.type == "IdentityN":
            yield from zip(op.inputs, outputs, strict=False)
        elif op.type in ALIAS_OPS:
            has_several = op.type in ("Merge", "NextIteration")
            sources = op.inputs if has_several else op.inputs[:1]
            count = 2 if op.type == "Switch" else 1

            for tensor in sources:
                for index in range(count):
                    yield tensor, index
        elif op.type in _LIST_OPS:
            for tensor in op.inputs:
                spec = self._structure.spec(tensor)
                if spec is None or spec.dtype == "variant" or (spec.shape or ()) != ():
                    for index in outputs:
                        yield tensor, index
        else:
            for index in outputs:
                source = ""
                if f"{op.name}:{index}" not in own:
                    source = self._find_source(op, index)

                if source:
                    yield source, index

    def _find_source(self, op: Op, index: int) -> str:
        """Return the input that a kernel forwards: the matching one with the fewest consumers."""
        structure = self._structure
        own = op.outputs[index]
        size_bytes = self._size(f"{op.name}:{index}")
        candidates = []

        for tensor in op.inputs:
            spec = structure.spec(tensor)
            if spec is None or spec.dtype != own.dtype:
                continue

            maker = structure.ops[split_tensor(tensor)[0]]
            is_fixed = maker.type in ("ReadVariableOp", "Const", "_Arg")

            # Without a known batch size, equal shapes decide.
            is_alike = self._size(tensor) == size_bytes > 0
            is_alike |= spec.shape == own.shape not in (None, ())

            if is_alike and not is_fixed:
                candidates.append(tensor)

        return min(
            candidates,
            key=lambda tensor: len(structure.consumers.get(tensor, ())),
            default="",
        )

    def _size(self, tensor: str) -> int:
        """Return the tensor's bytes, without a shape those of the largest input; 0 if unknown."""
        if tensor in self._sizes:
            return self._sizes[tensor]

        self._sizes[tensor] = 0  # stops at cycles
        spec = self._structure.spec(tensor)
        size_bytes = spec.size_bytes if spec is not None else 0

        if size_bytes is None and spec is not None:
            maker = self._structure.ops[split_tensor(tensor)[0]]
            size_bytes = 0

            for source in maker.inputs:
                found = self._structure.spec(source)
                if found is not None and found.dtype == spec.dtype:
                    size_bytes = max(size_bytes, self._size(source))

        self._sizes[tensor] = size_bytes or 0

        return self._sizes[tensor]


NO_SHARING = Sharing(NO_GRAPH, ())
CACHE_ROLE = "keys and values of earlier tokens"
_UPDATES = op_types("TensorScatterUpdate XlaDynamicUpdateSlice")

# Types of ops whose outputs are parts of the cache or consist of them.
_PARTS = ALIAS_OPS | op_types("Concat ConcatV2 Pack Slice StridedSlice Unpack")
_LOOPS = op_types("While StatelessWhile")
_CARRIES = op_types("NextIteration RefNextIteration") | _LOOPS


def find_cache(structure: GraphIndex) -> frozenset[str]:
    """Return the tensors of the cache; empty if no loop carries a tensor that an op updates in part."""
    found = set()

    for op in structure.ops.values():
        seed = f"{op.name}:0"
        if op.type in _UPDATES and seed not in found and _is_value(structure, seed):
            related = _find_related(structure, seed)
            makers = {split_tensor(one)[0] for one in related}

            if any(_is_carried(structure, maker) for maker in makers):
                found |= related

    return frozenset(found)


def _is_carried(structure: GraphIndex, name: str) -> bool:
    """Say whether an op passes a value to the next iteration, or is an argument of a loop's body."""
    kind = structure.ops[name].type
    loop = structure.ops.get(name.rpartition("/")[0])
    is_in_loop = loop is not None and loop.type in _LOOPS

    return kind in _CARRIES or (kind == "Placeholder" and is_in_loop)


def _find_related(structure: GraphIndex, seed: str) -> set[str]:
    """Return the tensors that hold the values of ``seed``, at any place or time."""

    def find_near(tensor: str) -> list[str]:
        name, index = split_tensor(tensor)
        near = _pass_on(structure.ops[name], index)

        for user in structure.consumers.get(tensor, ()):
            op = structure.ops[user]

            for output in range(len(op.outputs)):
                if tensor in _pass_on(op, output):
                    near.append(f"{user}:{output}")

        return [one for one in near if _is_value(structure, one)]

    return reach([seed], find_near)


def _pass_on(op: Op, output: int) -> list[str]:
    """Return the inputs whose values an output holds."""
    if op.type in _LOOPS:
        return list(op.inputs[output : output + 1])
    if op.type in _UPDATES:
        return list(op.inputs[:1])

    return list(op.inputs) if op.type in _PARTS else []


def _is_value(structure: GraphIndex, tensor: str) -> bool:
    spec = structure.spec(tensor)
    return spec is not None and is_float(spec.dtype) and len(spec.shape or ()) > 1


COLLECTIVES = _TABLE["collectives"]  # op types of an all-reduce and its like
ITERATOR = "IteratorGetNext"  # op type that takes the next batch of a data set

# Op types whose outputs are inputs of the step.
INPUT_TYPES = ARGUMENT_TYPES | {ITERATOR, "Placeholder"}

MOVES = _TABLE["moves"]
SCALES = _TABLE["scales"]


def find_copies_of_inputs(structure: GraphIndex) -> dict[str, str]:
    """Return the copies of the step's inputs: tensor -> op type that made it."""
    inputs = set()

    for op in structure.ops.values():
        if op.type not in INPUT_TYPES:
            continue

        for index, spec in enumerate(op.outputs):
            if spec.dtype not in ("resource", "variant", ""):
                inputs.add(f"{op.name}:{index}")

    def find_next(tensor: str) -> Iterator[str]:
        for name in structure.consumers.get(tensor, ()):
            op = structure.ops[name]
            if op.outputs and _is_copy(op, tensor, structure):
                yield f"{name}:0"

    copies = {}

    for tensor in sorted(reach(inputs, find_next) - inputs):
        op_type = structure.ops[split_tensor(tensor)[0]].type
        if op_type not in ALIAS_OPS and op_type != "_Recv":
            copies[tensor] = op_type

    return copies


def _is_copy(op: Op, tensor: str, structure: GraphIndex) -> bool:
    """Say whether the first output of ``op`` contains all of ``tensor``."""
    if op.type in ALIAS_OPS or op.type in MOVES or op.type == "_Recv":
        return op.inputs[0] == tensor
    if op.type not in SCALES:
        return False

    spec = structure.spec(next((one for one in op.inputs if one != tensor), ""))

    return spec is not None and spec.shape == ()
