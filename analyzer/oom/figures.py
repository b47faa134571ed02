"""The figures of a failure: the size of the request, and the pool when it failed.

The chunk list of a dump comes first, because the allocator searches it. If the list is incomplete, the
allocator's own figures replace it, with the precision that was printed.
"""

from collections import Counter

from analyzer.model.contract.fields import numpy_name, tensor_bytes
from analyzer.model.contract.oom_file import AskedFor, OomSize
from analyzer.model.units import GRANULE_BYTES, Range
from analyzer.oom.failures import FailedAllocator, LoggedFailure
from analyzer.oom.wordings import difference, find, round_up_request


def find_request(failure: LoggedFailure) -> AskedFor | None:
    """Return the request; None if the log does not give its size."""
    size = failure.size
    tensor = tensor_bytes(numpy_name(failure.dtype), failure.shape)

    if tensor is not None and (size is None or tensor in size):
        basis = "the shape and the type"
        size = Range.exactly(tensor)
    elif (size := size or failure.printed.get("request")) is None:
        return None
    elif size.is_exact:
        basis = "the size in the log"
    elif size.width < GRANULE_BYTES and failure.has_allocator_line:
        basis = "the allocator's line, which rounds up to 256 bytes"
    else:
        basis = "the printed size, which is rounded"

    return AskedFor(
        requested_bytes=size.high if size.width < GRANULE_BYTES else size.middle,
        rounded_bytes=round_up_request(size.high),
        is_exact=size.is_exact,
        low_bytes=size.low,
        high_bytes=size.high,
        basis=basis,
    )


_CLASSES = 21  # ``kNumBins`` of ``bfc_allocator.h``


def compute_figures(failure: LoggedFailure) -> None:
    """Fill in the figures of the pool, as far as the dump gives them."""
    used_bytes = sum(size for _, size, is_used in failure.chunks if is_used)
    free_sizes = [size for _, size, is_used in failure.chunks if not is_used]
    row_bytes = sum(size * count for size, count in failure.used_sizes.items())

    region_bytes = sum(failure.regions)
    printed = failure.printed
    pool = printed.get("pool")
    in_use = printed.get("in_use")

    # without the size of the pool, a later part of the dump shows that no region is missing
    has_all_regions = bool(failure.used_sizes) or in_use is not None

    if pool is not None:
        has_all_regions = region_bytes in pool

    has_all_chunks = has_all_regions and region_bytes == used_bytes + sum(free_sizes)

    if in_use is not None:
        in_use = _narrow(in_use, Range.exactly(row_bytes), Range.exactly(used_bytes))
    elif failure.kind is FailedAllocator.ASYNC and row_bytes:
        in_use = Range.exactly(row_bytes)
    elif failure.regions and has_all_chunks:
        in_use = Range.exactly(used_bytes)

    if failure.regions and has_all_regions:
        pool = Range.exactly(region_bytes)

    failure.free = difference(pool, in_use)
    failure.is_complete = has_all_chunks and in_use == Range.exactly(used_bytes)

    if failure.is_complete:
        pool = Range.exactly(region_bytes)
        failure.free = Range.exactly(sum(free_sizes))
        failure.largest_hole = Range.exactly(max(free_sizes, default=0))

    room = printed.get("room")
    whole = pool + room if pool is not None and room is not None else None
    limit = _narrow(printed.get("limit"), whole, failure.card_limit)
    failure.pool = pool

    failure.in_use = in_use
    failure.limit = limit
    failure.room = _narrow(room, difference(limit, pool))
    failure.peak_in_use = printed.get("peak_in_use")

    if failure.size_classes != _CLASSES:
        failure.waste = None


def _narrow(*sizes: Range | None) -> Range | None:
    """Return the part that all known ranges share; the first range if they contradict each other."""
    narrow = None

    for size in sizes:
        if narrow is None or size is None:
            narrow = narrow or size
        else:
            narrow = narrow.intersection(size) or narrow

    return narrow


_MANY = 50  # chunks of one size

# Share of the bytes in use from which many chunks of one size look like a list that grows.
_DOMINANT = 0.6


def sizes_in_use(failure: LoggedFailure) -> list[OomSize]:
    """Return the sizes in use, those with most bytes first; empty if the log lists none."""
    request = failure.asked
    requested_bytes = request.rounded_bytes if request else None

    if request and failure.kind is FailedAllocator.ASYNC:
        requested_bytes = request.requested_bytes

    counts = failure.used_sizes
    if not counts:
        counts = Counter(size for _, size, is_used in failure.chunks if is_used)

    sizes = [
        OomSize(size, count, size * count, size == requested_bytes)
        for size, count in counts.items()
    ]

    return sorted(sizes, key=lambda size: (-size.total_bytes, size.size_bytes))


def find_dominant_size(failure: LoggedFailure) -> OomSize | None:
    """Return the size whose many chunks fill most of the pool; None if there is none."""
    if not failure.sizes or not failure.in_use_bytes:
        return None

    first = failure.sizes[0]
    is_dominant = first.total_bytes >= _DOMINANT * failure.in_use_bytes

    return first if is_dominant and first.count >= _MANY else None


_LARGEST_BATCH = 1 << 16  # a longer first axis is a data set, or a variable's
_LARGEST_KERNEL = 16  # elements along an axis of a convolution's kernel
_CUDNN_KERNELS = ((1, 1), (3, 3), (5, 5))  # few activations are as small


def find_batch(failure: LoggedFailure) -> int:
    """Return the first axis of the request; 0 if it may not be the batch, as in a variable's update."""
    examples = _count_examples(failure)
    if examples > _LARGEST_BATCH:
        return 0

    # recurrent layers put the time first (``time_major`` of ``rnn`` in Keras)
    is_short = len(failure.shape or ()) == 3
    is_recurrent = is_short and find("recurrent_op", _names_of(failure))

    return 0 if is_recurrent else examples


def is_data_set(failure: LoggedFailure) -> bool:
    """Return whether the first axis of a request holds the examples of a whole data set."""
    has_op = bool(failure.op or failure.op_type)
    return has_op and _count_examples(failure) > _LARGEST_BATCH


def is_weight(failure: LoggedFailure) -> bool:
    """Return whether the request has the shape of a variable, which no batch size changes."""
    if failure.makes_weights:
        return True

    names = _names_of(failure)
    shape = failure.shape or ()

    product = find("weight_product", names)
    if product and len(shape) == 2:
        return not product["first"] or shape[:1] > (_LARGEST_BATCH,)

    return find("weight_op", names) is not None


def _names_of(failure: LoggedFailure) -> str:
    file = failure.words.partition("OP_REQUIRES failed at ")[2][:24]  # of the kernel
    names = f"{failure.op} {failure.op_type} {failure.requested_by} {file}".lower()
    return names.replace("layoutoptimizer", "")  # of Grappler, in any op


def _count_examples(failure: LoggedFailure) -> int:
    """Return the first axis of the request; 0 if it does not count examples."""
    shape = failure.shape or ()
    is_variable = find("variable_op", _names_of(failure)) is not None

    # the kernel of a convolution: height, width and channels, in cuDNN's order the channels first
    is_kernel = len(shape) in (4, 5) and (
        shape[0] == shape[1] <= _LARGEST_KERNEL or shape[2:] in _CUDNN_KERNELS
    )
    is_image = len(shape) == 3 and shape[2] in (1, 3, 4)  # height, width, channels
    is_other = is_variable or is_weight(failure) or is_kernel or is_image
    has_examples = len(shape) > 2 and not is_other  # of two, the first may count tokens

    return shape[0] if has_examples else 0
