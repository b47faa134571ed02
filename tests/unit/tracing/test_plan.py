"""Memory plans: the compiler's sums, and who holds which bytes when."""

import gzip
from pathlib import Path

import pandas as pd
import pytest

from analyzer.model.contract.run_note import Op, TensorSpec
from analyzer.model.errors import TraceError
from analyzer.model.graph.graph_index import NO_GRAPH, build_graph_index
from analyzer.tracing.measure.measured_recording import open_measured
from analyzer.tracing.parse.buffer_plan import (
    BufferPlan,
    HloProto,
    Holder,
    PlanRegion,
    read_plan,
)
from analyzer.tracing.xla.compiled_modules import find_fullest, label_holders

ROOT = Path(__file__).parents[3]
PLAN = ROOT / "tests" / "unit" / "predict" / "notes" / "jit" / "plan.hlo.pb.gz"
ENTRY, ALLOC, FREE, SHARE = 1, 0, 1, 2


def step_plan() -> BufferPlan:
    return read_plan(gzip.decompress(PLAN.read_bytes()))


def made(
    *events: tuple[int, int, int],
    sizes: dict[int, tuple[int, int]],
    total: int,
    repeated: int = 0,
) -> BufferPlan:
    """Return the plan of a module with these values (offset, bytes) and heap events.

    The value ``repeated`` is one constant.
    """
    proto = HloProto()
    module = proto.hlo_module
    module.name, module.entry_computation_id = b"made", ENTRY
    computation = module.computations.add(id=ENTRY, root_id=max(sizes))
    allocation = proto.buffer_assignment.buffer_allocations.add(index=0, size=total)

    for number, (offset, size) in sizes.items():
        shape = {"element_type": 6, "dimensions": [size]}
        made_by = computation.instructions.add(
            id=number, name=f"i{number}".encode(), opcode=b"add", shape=shape
        )
        made_by.metadata.op_name = b"own"
        if number == repeated:
            made_by.opcode = b"broadcast"
            made_by.operand_ids.append(99)
            computation.instructions.add(id=99, name=b"zero", opcode=b"constant")
        buffer = proto.buffer_assignment.logical_buffers.add(id=number, size=size)
        buffer.defined_at.instruction_id = number
        allocation.assigned.add(logical_buffer_id=number, offset=offset, size=size)

    trace = proto.buffer_assignment.heap_simulator_traces.add()
    for kind, number, shared in events:
        trace.events.add(kind=kind, buffer_id=number, share_with_canonical_id=shared)
    return read_plan(proto.SerializeToString())


def test_the_temporaries_are_what_the_real_run_asked_for() -> None:
    recording = open_measured(ROOT / "traces" / "jit")
    rows = recording.allocations
    last = rows[rows["step"] == len(recording.steps) - 1]
    assert sum(one.size_bytes for one in step_plan() if not one.is_result) == int(
        last["requested_bytes"].max()
    )


def test_every_byte_counts_once() -> None:
    plan = step_plan()
    for region in plan:
        assert not (region.is_result and region.holders)
        assert all(0 <= size <= region.size_bytes for size in region.occupied_bytes)

        # No two values hold the same byte at one moment.
        for moment in range(0, region.moments, 7):
            held = sorted(
                (h.offset_bytes, h.offset_bytes + h.size_bytes)
                for h in region.holders
                if h.first <= moment < h.last
            )
            assert all(
                end <= start
                for (_, end), (start, _) in zip(held, held[1:], strict=False)
            )


def test_a_value_that_shares_takes_over_and_hands_on() -> None:
    # GIVEN b made in the bytes of a while a is alive, then a ends, then b
    plan = made(
        (ALLOC, 1, 0), (SHARE, 2, 1), (FREE, 1, 0), (ALLOC, 3, 0), (FREE, 2, 0), (FREE, 3, 0),
        sizes={1: (0, 64), 2: (0, 64), 3: (64, 32)}, total=128,
    )  # fmt: skip
    (region,) = plan
    spans = [(h.instruction, h.first, h.last) for h in region.holders]
    assert spans == [("i1", 0, 1), ("i2", 1, 4), ("i3", 3, 5)]
    assert region.occupied_bytes == [64, 64, 64, 96, 32, 0]


@pytest.mark.parametrize(
    ("offset", "error"),
    [(0, "buffer of 64 B"), (64, "value 2 lies outside of allocation")],
)
def test_values_that_do_not_fit_are_a_damaged_module(offset: int, error: str) -> None:
    with pytest.raises(TraceError, match=error):
        made(
            (ALLOC, 1, 0), (ALLOC, 2, 0), sizes={1: (0, 64), 2: (offset, 64)}, total=64
        )


def test_zeros_that_ops_share_have_no_name_of_an_op() -> None:
    # GIVEN i1, which repeats a constant that XLA named after one of its users, and i2
    ends = (ALLOC, 1, 0), (ALLOC, 2, 0), (FREE, 1, 0), (FREE, 2, 0)
    sizes = {1: (0, 64), 2: (64, 64)}
    (region,) = made(*ends, sizes=sizes, total=128, repeated=1)
    # THEN i1 has no name: other ops may use it too
    assert [holder.op_name for holder in region.holders] == ["", "own"]


def test_values_are_placed_where_the_most_bytes_are_in_use() -> None:
    # GIVEN the buffer of a module, and two others that are requested while it runs
    lives = {"born": [0, 1, 4], "dies": [6, 3, 5], "requested_bytes": [8, 2, 5]}
    assert find_fullest(pd.DataFrame(lives), 7, [0, 1]).tolist() == [4, 1]


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"\xff\xff\xff\xff", id="no message"),
        pytest.param(gzip.decompress(PLAN.read_bytes())[:-7], id="cut off"),
    ],
)
def test_what_is_no_module_is_refused_in_one_line(damaged: bytes) -> None:
    with pytest.raises(TraceError) as caught:
        read_plan(damaged)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("last", "role"),
    [(5, "read in the forward pass only"), (7, "kept for the backward pass")],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_value_is_kept_if_it_lives_until_the_backward_pass(
    last: int, role: str, dtype: str
) -> None:
    # GIVEN a value of the forward pass that is freed before, or after, the backward pass begins
    common = {"size_bytes": 64, "offset_bytes": 0, "opcode": "fusion", "op_type": "mul"}
    common |= {"dtype": dtype, "shape": (16,), "is_argument": False}
    forward, backward = "jit(f)/jvp()/mul", "jit(f)/transpose(jvp())/mul"
    holders = (
        Holder(**common, instruction="a", op_name=forward, first=2, last=last),
        Holder(**common, instruction="b", op_name=backward, first=6, last=9),
    )
    facts = {"size_bytes": 128, "is_result": False, "is_tuple": False}
    facts |= {"dtype": "", "shape": None, "op_name": ""}
    region = PlanRegion(**facts, holders=holders, moments=9)
    # THEN it is kept only if it is alive then; without floats, no backward pass is known
    expected = role if dtype == "float32" else "forward temporary"
    assert label_holders(region, NO_GRAPH, infer=False)[0]["role"] == expected


def test_a_half_of_a_weight_and_shared_zeros_are_temporaries() -> None:
    # GIVEN a module with the float16 copy of a variable, and zeros without a name
    half = TensorSpec("float16", (16,))
    read = Op("read", "ReadVariableOp", outputs=(TensorSpec("float32", (16,)),))
    cast = Op("dense/Cast", "Cast", inputs=("read:0",), outputs=(half,))
    common = {"size_bytes": 32, "offset_bytes": 0, "opcode": "fusion", "op_type": ""}
    common |= {"dtype": "float16", "shape": (16,), "is_argument": False, "last": 9}
    facts = {"size_bytes": 64, "is_result": False, "is_tuple": False}
    facts |= {"dtype": "", "shape": None, "op_name": ""}
    holders = tuple(
        Holder(**common, instruction=name, op_name=name, first=2)
        for name in ("dense/Cast", "")
    )
    region = PlanRegion(**facts, holders=holders, moments=9)
    labels = label_holders(region, build_graph_index([read, cast]), infer=False)
    assert [one["category"] for one in labels] == ["temporary", "temporary"]
    assert [one["role"] for one in labels] == ["weight in half precision", ""]
