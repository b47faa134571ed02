"""What a call of an XLA-compiled function asks the allocator for.

TensorFlow runs such a call as one op (``XlaLocalLaunch``; ``compiler/jit/kernels/xla_ops.cc``). In the
order of XLA's allocations it asks for the table of the results' addresses, the results and the
temporaries (``CpuExecutable::CreateBufferTable``, ``GpuExecutable::GenerateBufferAllocations``). A
result that is a variable's new value takes the old value's buffer where nothing else refers to it;
otherwise it is allocated, after all of the former, and the variable adopts it
(``CreateResultShapedBuffer``; ``XlaComputationLaunchContext::PopulateOutputs``). A result that is an
argument, unchanged, is that argument's tensor on a card (``GetOrCreateTensorForOutput``), and a copy on
the host. Then the temporaries are freed, the old values, and last the table.

The compiled module's parameters are the call's tensors in order, then the values of its variables
(``XlaCompiler::BuildArguments``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from analyzer.simulate.kernels.shared.memory_plan import MemoryPlan, Output, Way
from analyzer.simulate.kernels.shared.op_call import Call
from analyzer.tracing.xla.buffer_plan import BufferPlan, ValueUse
from analyzer.tracing.xla.compile_trials import CompileTrial

TEMPORARY: Final = -1  # in place of an output: freed when the call is over
TABLE: Final = -2  # in place of an output: a tuple's table of pointers, or a result without a place


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """The requests of one call.

    Attributes:
        requests: Bytes of each request, and the op's output that it is: ``TEMPORARY``,
            ``TABLE`` for what is freed when the call is over.
        updates: For each variable that gets a new value: the input with its handle, the bytes.
        anew: Those of them whose old value was compiled in: the next call compiles the function anew.
        keeps: The compiled functions stay, and with each the values that were compiled into it
            (``DeviceCompilationClusterSignature``; where the device is not the host, copies of them).
        trials: What is asked for when the function is compiled, at its first call.
    """

    requests: tuple[tuple[int, int], ...]
    updates: tuple[tuple[int, int], ...]
    anew: frozenset[int] = frozenset()
    keeps: bool = False
    trials: tuple[CompileTrial, ...] = ()


def plan_compiled(call: Call, plan: BufferPlan, *, on_host: bool = True) -> MemoryPlan:
    """Return what one call of a compiled function does.

    Args:
        call: The call's op.
        plan: The function's memory plan.
        on_host: The device's memory is the host's.
    """
    sources = _sources(call, plan)
    aliased = {result: sources[p] for result, p in plan.aliases.items() if p < len(sources)}
    given = [result for result in range(len(plan.outputs)) if result not in aliased]
    place = _outputs_of(call, plan, given)
    handed_on = {
        place[result]: sources[p]
        for result, p in plan.handed_on.items()
        if result in place and p < len(sources)
    }
    plain = [result for result in given if result not in plan.handed_on]
    requests: list[tuple[int, int]] = []
    left = list(plain)
    for region in plan.regions:
        if region.use is ValueUse.TEMPORARY:
            requests.append((region.size_bytes, TEMPORARY))
        elif region.use is ValueUse.OUTPUT and region.is_tuple:
            requests.append((region.size_bytes, TABLE))
        elif region.use is ValueUse.OUTPUT:
            known = [result for result in region.results if result in left]
            result = known[0] if known else left[0] if left else None
            if result is not None:
                left.remove(result)
            requests.append((region.size_bytes, place.get(result, TABLE)))
    asked = {output: size_bytes for size_bytes, output in requests}
    return MemoryPlan(
        outputs=tuple(
            Output(Way.ALIAS, call.size(index), (handed_on[index],))
            if index in handed_on
            else Output(
                Way.ALLOCATE if index in asked else Way.NONE,
                call.size(index) or asked.get(index, 0),
            )
            for index in range(len(call.op.outputs))
        ),
        compiled=CompiledCall(
            requests=tuple(request for request in requests if request[0]),
            updates=tuple(
                (source, plan.outputs[result]) for result, source in sorted(aliased.items())
            ),
            anew=plan.fixed & set(aliased.values()),
            keeps=on_host,
            trials=plan.trials,
        ),
    )


def _sources(call: Call, plan: BufferPlan) -> list[int]:
    """Return the op's input behind each parameter of the compiled module.

    A tensor that has to be known when the function is compiled is no parameter: those that are told
    of, and those whose bytes do not fit the next parameter, are passed over.
    """
    handles = [
        index
        for index, spec in enumerate(call.inputs)
        if spec is not None and spec.dtype == "resource"
    ]
    tensors = [index for index in range(len(call.inputs)) if index not in handles]
    count = max(len(plan.parameters) - len(handles), 0)
    if count < len(tensors):
        told = [index for index in tensors if index not in plan.fixed]
        tensors = told if count <= len(told) else tensors
    chosen: list[int] = []
    for position, index in enumerate(tensors):
        left, wanted = len(tensors) - position, count - len(chosen)
        fits = wanted > 0 and call.input_size(index) == plan.parameters[len(chosen)]
        if wanted > 0 and (fits or left <= wanted):
            chosen.append(index)
    return [*chosen, *handles[: len(plan.parameters) - len(chosen)]]


def _outputs_of(call: Call, plan: BufferPlan, given: list[int]) -> dict[int | None, int]:
    """Return the op's output that each result is which the caller is given.

    Outputs that the compiler knew are no results; those whose bytes do not fit are passed over. One
    whose shape is not known may be any.
    """
    sizes = [output.size_bytes for output in call.op.outputs]
    outputs = [index for index, size in enumerate(sizes) if size != 0]
    found: dict[int | None, int] = {}
    at = 0
    for position, result in enumerate(given):
        while (
            at < len(outputs)
            and len(outputs) - at > len(given) - position
            and sizes[outputs[at]] not in (None, plan.outputs[result])
        ):
            at += 1
        if at < len(outputs):
            found[result] = outputs[at]
            at += 1
    return found
