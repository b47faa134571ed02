"""The memory requests of a call of an XLA-compiled function.

TensorFlow runs such a call as one op (``XlaLocalLaunch``; ``compiler/jit/kernels/xla_ops.cc``). In the
order of XLA's allocations it requests the table of result addresses, the results and the temporaries
(``CpuExecutable::CreateBufferTable``, ``GpuExecutable::GenerateBufferAllocations``). A new value of a
variable takes the buffer of the old value if nothing else refers to it; otherwise it is allocated
afterwards (``XlaComputationLaunchContext::PopulateOutputs``). A result that is an unchanged argument is
its tensor on a card (``GetOrCreateTensorForOutput``), and a copy on the host. The temporaries are freed,
then the old values, and last the table. The module's parameters are the tensors of the call in order,
then the values of its variables (``XlaCompiler::BuildArguments``).
"""

from typing import Final

from msgspec import Struct

from analyzer.simulate.kernels.shared.op_call import Call, MemoryPlan, Output, Way
from analyzer.tracing.xla.buffer_plan import BufferPlan, ValueUse

TEMPORARY: Final = -1  # instead of an output index: a temporary, freed after the call

TABLE: Final = -2
"""Instead of an output index: a tuple's table of pointers, or a result that the op does not output."""


class CompiledCall(Struct, frozen=True):
    """The requests of one call."""

    # bytes and output index of each request, or ``TEMPORARY`` or ``TABLE`` if freed after the call
    requests: tuple[tuple[int, int], ...]
    updates: tuple[
        tuple[int, int], ...
    ]  # input index of each variable, bytes of its new value


def plan_compiled(call: Call, plan: BufferPlan) -> MemoryPlan:
    """Return the memory plan of one call of a compiled function."""
    sources = dict(enumerate(_find_sources(call, plan)))
    aliased = {result: sources[p] for result, p in plan.aliases.items() if p in sources}
    given = [result for result in range(len(plan.outputs)) if result not in aliased]
    places = _find_outputs(call, plan, given)
    handed_on = {
        places[result]: sources[p]
        for result, p in plan.handed_on.items()
        if result in places and p in sources
    }
    left = [result for result in given if result not in plan.handed_on]
    requests = []  # in the order of XLA's allocations

    for region in plan.regions:
        if region.use is ValueUse.TEMPORARY:
            requests.append((region.size_bytes, TEMPORARY))
        elif (
            region.use is ValueUse.OUTPUT
        ):  # a region names its result, or else takes the next
            known = [result for result in region.results if result in left]
            result = None if region.is_tuple else next(iter(known or left), None)
            if result is not None:
                left.remove(result)

            requests.append((region.size_bytes, places.get(result, TABLE)))

    requested = {output: size_bytes for size_bytes, output in requests}

    def find_output(index: int) -> Output:
        size_bytes = call.size(index)
        if index in handed_on:
            return Output(Way.ALIAS, size_bytes, (handed_on[index],))
        if index in requested:
            return Output(Way.ALLOCATE, size_bytes or requested[index])
        return Output(Way.NONE, size_bytes)  # a constant of the function

    return MemoryPlan(
        outputs=tuple(map(find_output, range(len(call.op.outputs)))),
        compiled=CompiledCall(
            requests=tuple(request for request in requests if request[0]),
            updates=tuple(
                (source, plan.outputs[result])
                for result, source in sorted(aliased.items())
            ),
        ),
    )


def _find_sources(call: Call, plan: BufferPlan) -> list[int]:
    """Return the input of the op for each parameter of the compiled module.

    A tensor that is a constant of the compiled function is no parameter. Inputs whose bytes do
    not fit the next parameter are skipped.
    """
    indexes = range(len(call.inputs))
    handles = [index for index in indexes if call.dtype(index) == "resource"]
    tensors = [index for index in indexes if index not in handles]
    count = max(len(plan.parameters) - len(handles), 0)
    chosen: list[int] = []
    for position, index in enumerate(tensors):
        left, wanted = len(tensors) - position, count - len(chosen)
        fits = wanted > 0 and call.input_size(index) == plan.parameters[len(chosen)]
        if wanted > 0 and (fits or left <= wanted):
            chosen.append(index)

    return [*chosen, *handles[: len(plan.parameters) - len(chosen)]]


def _find_outputs(
    call: Call, plan: BufferPlan, given: list[int]
) -> dict[int | None, int]:
    """Return the output of the op for each result that the caller gets.

    Outputs that are constants of the compiled function are no results. Outputs whose bytes do not fit
    are skipped; an output of unknown shape fits any result.
    """
    sizes = [output.size_bytes for output in call.op.outputs]
    outputs = [index for index, size in enumerate(sizes) if size != 0]
    places: dict[int | None, int] = {}

    for position, result in enumerate(given):
        while (
            len(outputs) > len(given) - position
            and outputs
            and sizes[outputs[0]] not in (None, plan.outputs[result])
        ):
            outputs.pop(0)

        if outputs:
            places[result] = outputs.pop(0)

    return places
