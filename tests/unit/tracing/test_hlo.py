"""Compiled modules: what is read of them, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analyzer.model.errors import TraceError
from analyzer.tracing.parse.hlo import FREE, read_hlo

PLAN = Path(__file__).parents[1] / "predict" / "notes" / "jit" / "plan.hlo.pb.gz"


def content() -> bytes:
    return gzip.decompress(PLAN.read_bytes())


def test_a_module_that_tensorflow_compiled() -> None:
    # GIVEN the compiled step of a network of three layers with Adam
    hlo = read_hlo(content())
    # THEN its parameters are two inputs and twenty-two variables, of which one is only read
    entry = [i for i in hlo.instructions.values() if i.computation == hlo.entry]
    parameters = [i for i in entry if i.parameter is not None]
    assert sorted(i.parameter or 0 for i in parameters) == list(range(24))
    assert len(hlo.aliases) == 21
    assert hlo.instructions[hlo.roots[hlo.entry]].opcode == "tuple"
    # AND every value lies in an allocation, and every allocation is large enough
    placed = {
        part.logical_buffer_id for one in hlo.allocations for part in one.assigned
    }
    assert placed == set(hlo.buffers)
    # AND the heap trace ends each value that it begins
    begun = [event.buffer_id for event in hlo.heap_events if event.kind != FREE]
    ended = [event.buffer_id for event in hlo.heap_events if event.kind == FREE]
    assert sorted(begun) == sorted(ended)
    # AND the framework's ops are named
    assert any(i.op_name == "mlp_1/dense_1/Relu" for i in hlo.instructions.values())


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"\xff\xff\xff\xff", id="no message"),
        pytest.param(content()[:-7], id="cut off"),
    ],
)
def test_what_is_no_module_is_refused_in_one_line(damaged: bytes) -> None:
    with pytest.raises(TraceError) as caught:
        read_hlo(damaged)
    assert "\n" not in caught.value.message
