"""The CPU's all-reduce: a ring in which each device adds up a part at a time."""

from __future__ import annotations

from typing import Final

from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan
from analyzer.simulate.kernels.shared.op_call import Call, allocate_all, forward

_GROUP_INPUT: Final = 1  # of the second version on, the number of devices


def plan_all_reduce(call: Call) -> MemoryPlan:
    """Write the sum into the input's buffer where it is free, with room for what others send.

    The tensor is cut into as many chunks as there are devices; each but the one that a device sends
    first is received into a buffer of its own before it is added (``RingReducer::InitRingField``:
    ``TempChunk`` where ``do_recv``), all of them asked for at the start.
    """
    group = call.attr("group_size")
    if group is None and len(call.values) > _GROUP_INPUT and call.values[_GROUP_INPUT]:
        group = (call.values[_GROUP_INPUT] or (0,))[0]
    if not isinstance(group, int) or group < 1:
        return MemoryPlan(outputs=allocate_all(call), modelled=False)
    chunk_bytes = -(-call.size() // group)
    return MemoryPlan(
        outputs=(forward(call, (0,)),), after_bytes=(chunk_bytes,) * (min(group, 1024) - 1)
    )
