"""The blocks to recompute are the best partition of the chain, by trying every one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from analyzer.fitting.block_partition import (
    ChainUnit,
    _skip_constants,
    _sort_layers,
    choose_blocks,
    find_peak,
)
from analyzer.fitting.remedy_plans import read_recomputing_code
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import GraphIndex, Phase


def chain(
    sizes: Sequence[tuple[int, int]], random: Sequence[int] = ()
) -> list[ChainUnit]:
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


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=7)
)
def test_a_partition_lowers_the_peak(sizes: list[tuple[int, int]]) -> None:
    units = chain(sizes)
    blocks = choose_blocks(units)
    if blocks:
        assert find_peak(units, blocks) < find_peak(units, [])
    stops = [0, *(stop for _, stop in blocks)]
    assert all(
        stop <= start < end for stop, (start, end) in zip(stops, blocks, strict=False)
    )


def test_equal_units_are_cut_near_the_square_root_of_their_number() -> None:
    units = chain([(100, 100)] * 100)
    assert find_peak(units, choose_blocks(units)) <= 0.25 * find_peak(units, [])


def test_what_draws_random_numbers_is_never_recomputed() -> None:
    units = chain([(50, 5)] * 6, random=(2,))
    blocks = choose_blocks(units)
    assert blocks
    for start, stop in blocks:
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
