"""The blocks to recompute are the best partition of the chain, by trying every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.fitting.block_partition import (
    ChainUnit,
    _skip_constants,
    _sort_layers,
    best_plan,
)
from analyzer.fitting.remedy_plans import read_recomputing_code
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import GraphIndex
from analyzer.model.graph.phases import Phase

Blocks = tuple[tuple[int, int], ...]


def chain(sizes: Sequence[tuple[int, int]], random: Sequence[int] = ()) -> list[ChainUnit]:
    return [
        ChainUnit(
            layers=(f"a{number}", f"b{number}"),
            kept_bytes=kept,
            leaves_bytes=leaves,
            operations=2,
            is_random=number in random,
        )
        for number, (kept, leaves) in enumerate(sizes)
    ]


def partitions(start: int, stop: int) -> Iterator[Blocks]:
    if start == stop:
        yield ()
        return
    for blocks in partitions(start + 1, stop):
        yield blocks
    for end in range(start + 1, stop + 1):
        for blocks in partitions(end, stop):
            yield ((start, end), *blocks)


def peak(units: Sequence[ChainUnit], blocks: Blocks) -> int:
    """Return what is kept beside the largest block."""
    kept = sum(unit.kept_bytes + unit.leaves_bytes for unit in units)
    largest = 0
    for start, stop in blocks:
        inside = sum(unit.kept_bytes + unit.leaves_bytes for unit in units[start:stop])
        inside -= units[stop - 1].leaves_bytes
        kept -= inside
        largest = max(largest, inside)
    return kept + largest


def places(units: Sequence[ChainUnit], blocks: Sequence[tuple[str, str]]) -> Blocks:
    first = {unit.layers[0]: number for number, unit in enumerate(units)}
    last = {unit.layers[-1]: number for number, unit in enumerate(units)}
    return tuple((first[a], last[b] + 1) for a, b in blocks)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=7))
def test_no_partition_has_a_lower_peak(sizes: list[tuple[int, int]]) -> None:
    units = chain(sizes)
    least = min(peak(units, blocks) for blocks in partitions(0, len(units)))
    plan = best_plan(units)
    if plan is None:
        assert least == peak(units, ())
    else:
        blocks = places(units, plan.blocks)
        assert peak(units, blocks) <= 1.01 * least
        assert plan.operations == sum(2 * (stop - start) for start, stop in blocks)


def test_what_draws_random_numbers_is_never_recomputed() -> None:
    units = chain([(50, 5)] * 6, random=(2,))
    plan = best_plan(units)
    assert plan is not None
    for start, stop in places(units, plan.blocks):
        assert not start <= 2 < stop


def test_the_code_to_paste_is_code() -> None:
    code = read_recomputing_code()
    compile(code, "pasted", "exec")
    assert "def recompute_blocks(" in code
    assert "# ---" not in code


def test_layers_that_share_a_constant_are_still_a_chain() -> None:
    """Grappler makes equal constants one: the first layer then takes the last one's."""
    ops = [
        Op("x", "_Arg"),
        Op("b/half", "Const"),
        Op("b/twice", "Mul", ("b/half:0", "b/half:0")),
        Op("a/out", "Mul", ("x:0", "b/twice:0")),
        Op("b/out", "Mul", ("a/out:0", "b/half:0")),
    ]
    outputs = (TensorSpec("float32", (512,)),)
    ops = [replace(op, outputs=outputs) for op in ops]
    consumers: dict[str, list[str]] = {}
    for op in ops:
        for tensor in dict.fromkeys(op.inputs):
            consumers.setdefault(tensor, []).append(op.name)
    structure = GraphIndex(
        ops={op.name: op for op in ops},
        consumers=consumers,
        gradients=frozenset(),
        phases=dict.fromkeys((op.name for op in ops), Phase.FORWARD),
        layers={op.name: op.name.partition("/")[0] for op in ops if "/" in op.name},
    )
    layers = _skip_constants(structure, structure.layers)
    assert _sort_layers(structure, layers) == ["a", "b"]
    assert _sort_layers(structure, structure.layers) == []
