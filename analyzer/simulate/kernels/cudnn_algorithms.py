"""cuDNN's algorithms for a convolution: the workspace of each, and the time that decides between them.

Each function in ``CUDA_CORE_ALGORITHMS`` and ``TENSOR_CORE_ALGORITHMS`` describes one. Workspaces are
closed forms; times and shares are calibrated, one for each pass in the order of ``PASSES``. The
docstrings state how many measured workspaces ("rows") are exact.

Sources: workspaces and kernels of 168 public profiler traces (TensorFlow 2.3 to 2.4.1; V100, P100, T4,
GTX 1080, GTX 1060, RTX 2060), of NVIDIA's mnistCUDNN sample on newer cards (cuDNN 8.0 to 9.10), of
kernel tables of Ampere and Blackwell cards, and of an H200 (TensorFlow 2.21, cuDNN 9.19; measured with
benchmarks/card). docs/accuracy.md states how well they agree.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from analyzer.cards.catalogue import Gpu

CUDNN_MAJOR = 9  # cuDNN's major version in TensorFlow 2.21's wheel (9.3)

PASSES = ("forward", "input_gradient", "filter_gradient")

# First capability for which cuDNN uses tensor cores, and then computes in NHWC
# (``ComputeInNhwcEnabled``).
_TENSOR_CORES_FROM = {"float16": (7, 0), "bfloat16": (8, 0), "float32": (8, 0)}


def has_tensor_cores(dtype: str, gpu: Gpu) -> bool:
    """Say whether cuDNN uses tensor cores of a card for an element type."""
    first = _TENSOR_CORES_FROM.get(dtype)
    return first is not None and gpu.compute_capability >= first


def divide_up(size: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-size // divisor)


def pad(size: int, multiple: int) -> int:
    """Round up to a multiple."""
    return divide_up(size, multiple) * multiple


def next_power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below ``size``."""
    return 1 << max(size - 1, 0).bit_length()


Axes = tuple[int, ...]  # sizes of the axes of a tensor


class Convolution(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of one call of cuDNN."""

    direction: str  # one of ``PASSES``
    image: Axes  # batch, channels and axes of the convolved tensor
    kernel: Axes  # filters and axes of the filter
    result: Axes  # axes of the forward output
    groups: int = 1  # the largest of each over the axes
    stride: int = 1
    dilation: int = 1
    dtype: str = "float32"
    channels_last: bool = False  # order of the axes in cuDNN's tensors


class ConvolutionOnCard:
    """A convolution on a card: its sizes, the card's figures, and whether cuDNN uses tensor cores.

    Sizes of tensors are bytes. *Read* is the tensor that the pass convolves, *written* its result: the
    input gradient reads the output's gradient. Two axes count as three with a depth of 1.
    """

    def __init__(self, call: Convolution, gpu: Gpu) -> None:
        self.call = call
        self.place = PASSES.index(call.direction)
        self.is_forward = call.direction == "forward"
        self.is_input_gradient = call.direction == "input_gradient"
        self.is_filter_gradient = call.direction == "filter_gradient"
        self._set_shapes(call)

        self._set_card(gpu)
        self._set_kind(call, gpu)
        self._set_tensors(call)

    def _set_shapes(self, call: Convolution) -> None:
        depth = (1,) * (5 - len(call.image))
        self.is_deep = len(call.image) > 4
        self.batch, self.channels, *image = call.image
        self.filters, *window = call.kernel

        # Two axes count as three with a depth of 1.
        self.depth, self.height, self.width = (*depth, *image)
        self.window_depth, self.window_height, self.window_width = (*depth, *window)

        results = (*depth, *call.result)
        self.result_depth, self.result_height, self.result_width = results

        self.window_area = self.window_height * self.window_width
        self.window_points = self.window_depth * self.window_area
        self.result_area = self.result_height * self.result_width
        self.result_points = self.result_depth * self.result_area

        if self.is_input_gradient:
            self.read_channels = self.filters
            self.written_channels = self.channels
            self.written_height = self.height
            self.written_width = self.width
        else:
            self.read_channels = self.channels
            self.written_channels = self.filters
            self.written_height = self.result_height
            self.written_width = self.result_width

        # the longer side of the result with the window's margins, which an FFT transforms
        high = self.written_height + self.window_height
        wide = self.written_width + self.window_width
        self.full_side = max(high, wide) - 1

    def _set_card(self, gpu: Gpu) -> None:
        self.capability_text = gpu.capability_text
        self.multiprocessors = gpu.sm_count

        lanes = gpu.sm_count * gpu.fp32_lanes
        self.operations = 2 * lanes * gpu.clock_mhz  # in float32, in a microsecond
        self.bandwidth = gpu.bandwidth_bytes_s / 1e6  # bytes in a microsecond

    def _set_kind(self, call: Convolution, gpu: Gpu) -> None:
        """Decide which cores compute; only measured kinds have algorithms on CUDA cores."""
        self.uses_tensor_cores = has_tensor_cores(call.dtype, gpu)
        self.has_cuda_core_algorithms = (
            call.dtype in ("float32", "float16")
            and call.groups == 1
            and not self.is_deep
        )

        self.is_dense = call.stride == 1 and call.dilation == 1
        self.is_pointwise = self.window_points == 1 and call.stride == 1

    def _set_tensors(self, call: Convolution) -> None:
        """Set the bytes of the tensors, and of cuDNN's copies with channels last.

        A copy pads channels to multiples of 16 bytes, except a single one.
        """
        self.item_bytes = {"float64": 8, "float32": 4}.get(call.dtype, 2)
        point_bytes = self.item_bytes * self.batch
        image_points = self.depth * self.height * self.width
        kernel_size = self.filters * self.channels * self.window_points

        self.image_bytes = point_bytes * self.channels * image_points
        self.result_bytes = point_bytes * self.filters * self.result_points
        self.kernel_bytes = self.item_bytes * kernel_size // call.groups
        self.tensor_bytes = self.image_bytes + self.kernel_bytes + self.result_bytes

        multiple = 16 // self.item_bytes
        self.is_aligned = self.channels % multiple == 0 and self.filters % multiple == 0
        channels = self.channels
        filters = self.filters

        if channels > 1:
            channels = pad(channels, multiple)
        if filters > 1:
            filters = pad(filters, multiple)

        self.padded_channels = channels
        self.padded_filters = filters
        self.image_copy_bytes = point_bytes * channels * image_points
        self.result_copy_bytes = point_bytes * filters * self.result_points
        self.kernel_copy_bytes = 0

        if self.window_points > 1 or not self.is_aligned:
            padded_size = self.item_bytes * channels * filters * self.window_points
            self.kernel_copy_bytes = padded_size // call.groups


class Offer(NamedTuple):
    """The workspace of an algorithm, and its time; the fastest one is chosen."""

    bytes: int
    microseconds: float
    name: str = ""


# None of an algorithm that cannot compute a convolution.
MaybeOffer = Offer | None

# of the share of a card's speed, see ``_make_offer``; rows, columns and depth of a product of matrices
Factors = tuple[float, float, float, float]
Product = tuple[int, int, int]

# Algorithms with at most this factor of the shortest modelled time may be the fastest on a card.
LIKELY = 2.0

# Return the offer of an algorithm for a convolution.
Algorithm = Callable[[ConvolutionOnCard], MaybeOffer]

# Architectures of the cards with measured times.
CALIBRATED_CAPABILITIES = ("6.0", "6.1", "7.0", "7.5")

# Of an algorithm without tensor cores where cuDNN uses them. It keeps a chance of 0.1 %.
#
# On an H200 such algorithms were tried, except that FFT was not tried in the input gradient, its
# tiles only there, and Winograd only in the filter gradient. FFT of single points was tried for
# images with sides of a power of two, and for the gradients of large filters.
_TENSOR_CORE_MICROSECONDS = 1000.0


def _make_offer(
    on: ConvolutionOnCard,
    workspace_bytes: int,
    *,
    share: float,
    factors: Factors,
    launch: float,
    product: Product | None = None,
    products: int = 1,
    operations: int = 1,
    splits: bool = False,
    moved_bytes: int = 0,
) -> Offer:
    """Return the offer of an algorithm that computes matrix products in tiles of 128 x 64.

    Args:
        on: The convolution.
        workspace_bytes: Its workspace, without copies of tensors.
        share: Share of the card's speed.
        factors: Factor of the share on each of ``CALIBRATED_CAPABILITIES``; the last is for any other.
        launch: Microseconds for the launches of its kernels.
        product: Rows, columns and depth; None for those of a direct convolution.
        products: Number of such products.
        operations: Multiplications for each pair of numbers; 2 for complex ones.
        splits: Whether several tiles share the sum over the depth, to fill the card.
        moved_bytes: Reads and writes of the workspace.
    """
    workspace_bytes += _copies_bytes(on)
    if on.uses_tensor_cores:
        return Offer(workspace_bytes, _TENSOR_CORE_MICROSECONDS)

    rows, columns, depth = _find_product(on) if product is None else product
    tiles = products * divide_up(rows, 128) * divide_up(columns, 64)
    blocks = tiles

    if splits:
        blocks *= max(min(depth // 256, max(2 * on.multiprocessors // tiles, 1)), 1)

    waves = pad(blocks, on.multiprocessors)
    work = 2 * operations * tiles * 8192 * max(depth, 8) * waves / blocks

    factor = factors[-1]

    if on.capability_text in CALIBRATED_CAPABILITIES:
        factor = factors[CALIBRATED_CAPABILITIES.index(on.capability_text)]

    computing = work / (on.operations * (share * factor))
    moving = (on.tensor_bytes + moved_bytes) / (0.8 * on.bandwidth)

    return Offer(workspace_bytes, computing + moving + launch)


def _find_product(on: ConvolutionOnCard) -> Product:
    """Return rows, columns and depth of a direct convolution's matrix product."""
    taps = on.channels * on.window_area
    if on.is_forward:
        return on.batch * on.result_area, on.filters, taps

    if on.is_input_gradient:
        rows = on.batch * on.height * on.width
        depth = on.filters * on.window_area // (on.call.stride * on.call.stride)

        return rows, on.channels, depth

    return max(taps, on.filters), min(taps, on.filters), on.batch * on.result_area


def _find_transformed_product(
    on: ConvolutionOnCard,
    tiles: int,
) -> Product:
    """Return rows, columns and depth of the product for each point of a transformed tile."""
    if on.is_filter_gradient:
        return max(on.channels, on.filters), min(on.channels, on.filters), tiles

    return tiles, on.written_channels, on.read_channels


def _copies_bytes(on: ConvolutionOnCard) -> int:
    """Return the copies of tensors with channels last for algorithms that need them first."""
    if on.uses_tensor_cores and on.call.channels_last:
        return on.tensor_bytes + 16

    return 0


def _offsets_bytes(on: ConvolutionOnCard) -> int:
    points = on.written_height * on.written_width
    return 4 * points + 4 * (points // 2 + 2)


def find_plain(on: ConvolutionOnCard) -> MaybeOffer:
    """``implicit_convolve_sgemm``, ``dgrad_engine`` and ``wgrad_alg0_engine``: always 0."""
    factors = (
        (0.902, 1.49, 0.882, 0.67),
        (0.999, 1.98, 1.1, 0.784),
        (0.804, 2.64, 1.33, 0.573),
    )

    return _make_offer(
        on,
        0,
        share=(0.55, 0.777, 0.779)[on.place],
        factors=factors[on.place],
        launch=(54, 181, 101)[on.place],
        splits=on.is_filter_gradient,
    )


def find_precomputed(on: ConvolutionOnCard) -> MaybeOffer:
    """Implicit GEMM with precomputed offsets (``scudnn_*_relu_*``): 396 of 396 rows."""
    if not on.is_forward:
        return None

    kernel_bytes = 4 * on.filters * on.channels * on.window_area
    workspace = pad(kernel_bytes, 128) + pad(_offsets_bytes(on), 128) + 1024

    return _make_offer(
        on,
        workspace,
        share=0.659,
        factors=(1.14, 1.11, 1.55, 0.606),
        launch=34.8,
    )


def find_strided(on: ConvolutionOnCard) -> MaybeOffer:
    """``scudnn_*stridedB*``: 67 of 67 rows."""
    if not on.is_input_gradient:
        return None

    image_bytes = 4 * on.batch * on.channels * on.height * on.width
    kernel_bytes = 4 * on.filters * on.channels * on.window_area
    workspace = image_bytes + kernel_bytes + pad(_offsets_bytes(on), 128) + 2192

    return _make_offer(
        on,
        workspace,
        share=0.596,
        factors=(1, 0.89, 1.5, 0.725),
        launch=61.3,
    )


def find_split_k(on: ConvolutionOnCard) -> MaybeOffer:
    """``stridedB_splitK``: 181 of 181 rows; the kernel's name has its tile, here 64 filters."""
    if not on.is_filter_gradient:
        return None

    taps = on.channels * on.window_area
    offsets = 12 * on.result_height * divide_up(on.window_area, 2)

    sums = 16 * on.window_area * divide_up(taps, 128) * divide_up(on.filters, 64)
    workspace = 4 * on.filters * taps + offsets + 2192 + sums

    return _make_offer(
        on,
        workspace,
        share=0.709,
        factors=(1.24, 1.33, 1.32, 0.618),
        launch=57.9,
        splits=True,
    )


def _is_winograd(on: ConvolutionOnCard, window: int) -> bool:
    is_square = on.window_height == on.window_width == window
    return on.is_dense and is_square


def _count_tiles(on: ConvolutionOnCard, side: int) -> int:
    """Return the tiles of the written tensor; the batch is padded to 16."""
    rows = divide_up(on.written_height, side)
    return pad(on.batch, 16) * rows * divide_up(on.written_width, side)


def find_winograd(
    on: ConvolutionOnCard,
    *,
    window: int,
    tile: int,
    products: int,
    shares: tuple[float, float, float],
    factors: Factors,
    launch: float,
) -> MaybeOffer:
    """``winograd_nonfused``; its transformed tensors are float32, one for each product: all rows.

    The filter has the sides ``window``, a tile of the result the sides ``tile``.
    """
    if not _is_winograd(on, window=window) or (
        on.uses_tensor_cores and not on.is_filter_gradient
    ):
        return None

    tiles = _count_tiles(on, tile)
    sizes = on.channels * tiles + on.filters * tiles + on.channels * on.filters
    workspace = 4 * products * sizes

    return _make_offer(
        on,
        workspace,
        share=shares[on.place],
        factors=factors,
        launch=launch,
        product=_find_transformed_product(on, tiles),
        products=products,
        moved_bytes=2 * workspace,
    )


def find_winograd_fused(on: ConvolutionOnCard) -> MaybeOffer:
    """``generateWinogradTiles``: 538 of 538 rows."""
    if on.is_filter_gradient or on.uses_tensor_cores or not _is_winograd(on, window=3):
        return None

    padded = pad(on.read_channels, 8) * pad(on.written_channels, 32)
    weights = 36 * on.channels * on.filters
    workspace = 64 * padded + weights + 4 * on.written_channels

    if on.is_forward:
        workspace += 1024

    tiles = on.batch * divide_up(on.written_height, 2) * divide_up(on.written_width, 2)
    return _make_offer(
        on,
        workspace,
        share=0.467 if on.is_forward else 0.516,
        factors=(0.921, 1.23, 1.07, 0.349),
        launch=42,
        product=(tiles, on.written_channels, on.read_channels),
        products=16,
        moved_bytes=2 * workspace,
    )


def _tries_fft(on: ConvolutionOnCard) -> bool:
    """Return whether cuDNN tries FFT beside tensor cores."""
    if on.is_input_gradient:
        return False

    is_large_filter = on.is_filter_gradient and on.channels * on.filters >= 65536
    has_power_of_two = on.result_height == next_power_of_two(on.result_height)

    return on.window_area > 1 or has_power_of_two or is_large_filter


def find_fft(on: ConvolutionOnCard) -> MaybeOffer:
    """``fft2d_r2c`` with one tile: 433 of 433 rows.

    The constant for 256 points is fitted to one layer.
    """
    side = max(next_power_of_two(on.full_side), 16)

    if not on.is_dense or side > 256:
        return None
    if on.uses_tensor_cores and not _tries_fft(on):
        return None

    kernels = on.filters * on.channels
    points = side * (side // 2 + 1)
    transform_bytes = 8 * points

    if on.is_filter_gradient:
        inputs = on.batch * (on.channels + on.filters)
        transforms = max(inputs, kernels)
        workspace = 4 * on.batch * on.filters * on.result_area
    else:
        inputs = kernels + on.batch * on.read_channels
        transforms = max(inputs, on.batch * on.written_channels)
        workspace = 4 * kernels * on.window_area

    workspace += 2 * transform_bytes * transforms
    if side == 256 and not on.uses_tensor_cores:
        workspace += 1572864

    all_transforms = kernels + on.batch * (on.channels + on.filters)
    return _make_offer(
        on,
        workspace,
        share=(0.735, 1.05, 1.52)[on.place],
        factors=(1.72, 4.43, 1.97, 1.81),
        launch=9.51,
        product=_find_transformed_product(on, on.batch),
        products=4 * points,
        operations=2,
        moved_bytes=2 * transform_bytes * all_transforms,
    )


def find_fft_tiling(on: ConvolutionOnCard) -> MaybeOffer:
    """FFT of 32x32 tiles, which is tried beside tensor cores: 48 of 48 rows."""
    side = max(on.window_height, on.window_width)
    is_tried = on.is_input_gradient and on.uses_tensor_cores
    is_offered = on.call.dilation == 1 and on.call.stride <= 2

    if not (is_tried and is_offered and 1 < side <= 32):
        return None

    parts = 2 if on.full_side > 32 else 1
    kernels = on.filters * on.channels

    images = on.batch * (on.channels + on.filters)
    workspace = 4352 * (kernels + parts * images) + 24576 * parts

    return Offer(workspace + _copies_bytes(on), _TENSOR_CORE_MICROSECONDS)


# Tensor cores need channels last, in multiples of 16 bytes. cuDNN copies other tensors, except filters
# of one point and a single channel. With channels first, a product over single points needs no copy if
# the points of an image are a multiple of 4. The shares are frequencies of 96 convolutions and of the
# layers of four networks on an H200; Ampere and Blackwell have fewer rows, which agree. These algorithms
# have no model of the time: it is the inverse of the share.


def _has_odd_points(on: ConvolutionOnCard) -> bool:
    return on.result_points % 4 > 0


def _find_share_without_copies(on: ConvolutionOnCard) -> float:
    if on.call.channels_last:
        if on.is_aligned:
            return 0.95

        return 0.6 if on.is_forward else 0.05

    if on.call.groups > 1:
        return 0.6
    if on.is_pointwise:
        return 0.2 if _has_odd_points(on) else 0.95

    return 0.6 if on.channels <= 4 else 0.03


def find_tensor_cores(on: ConvolutionOnCard) -> MaybeOffer:
    """Tensor cores on the caller's tensors."""
    share = _find_share_without_copies(on)

    if on.is_filter_gradient and on.call.channels_last:
        share *= 0.55
    elif on.is_filter_gradient and on.is_pointwise:
        share *= 0.2

    return Offer(0, 1 / share)


def find_tensor_cores_two_copies(on: ConvolutionOnCard) -> MaybeOffer:
    """Tensor cores on copies of image and filter; the result is written in the caller's order."""
    if on.is_filter_gradient:
        return None

    if on.call.channels_last:
        is_offered = not on.is_aligned
        share = 0.45
    else:
        is_offered = on.is_forward and not on.is_pointwise
        share = 0.15

    if not is_offered:
        return None

    return Offer(on.image_copy_bytes + on.kernel_copy_bytes + 16, 1 / share)


def find_tensor_cores_three_copies(on: ConvolutionOnCard) -> MaybeOffer:
    """Tensor cores on copies of all tensors."""
    if on.is_filter_gradient and not on.is_pointwise:
        return None

    if on.call.channels_last and on.is_aligned:
        return None

    share = 0.8

    if on.call.channels_last:
        share = 0.4
    elif on.is_pointwise and not _has_odd_points(on):
        share = 0.08

    copies = on.image_copy_bytes + on.result_copy_bytes + on.kernel_copy_bytes

    return Offer(copies + 16, 1 / share)


def find_tensor_cores_split_k(on: ConvolutionOnCard) -> MaybeOffer:
    """Partial sums in float32: one for each example of a product, else enough to fill the card."""
    if not on.is_filter_gradient:
        return None

    taps = on.padded_channels * on.window_points
    tiles = divide_up(taps, 128) * divide_up(on.filters, 128)
    sums = max(on.multiprocessors // tiles, 1)
    sums_bytes = 4 * taps * on.padded_filters // on.call.groups * sums

    if on.call.channels_last:
        copy_bytes = 0 if on.is_aligned else on.image_copy_bytes
        return Offer(copy_bytes + sums_bytes + 16, 1 / 0.45)

    copies = on.image_copy_bytes + on.result_copy_bytes + on.kernel_copy_bytes
    workspace = copies + sums_bytes

    if on.is_pointwise:
        workspace = min(workspace, 4 * on.batch * on.filters * on.channels)

    return Offer(workspace + 16, 1 / 0.85)


# Algorithms in the order in which TensorFlow tries them: those on CUDA cores come first.
CUDA_CORE_ALGORITHMS: dict[str, Algorithm] = {
    "precomputed": find_precomputed,
    "plain": find_plain,
    "strided": find_strided,
    "split-k": find_split_k,
    "winograd-4x4": partial(
        find_winograd,
        window=3,
        tile=4,
        products=36,
        shares=(0.594, 0.786, 1.21),
        factors=(0.996, 2.64, 1.59, 1.51),
        launch=44,
    ),
    "winograd-9x9": partial(
        find_winograd,
        window=5,
        tile=9,
        products=169,
        shares=(0.402, 0.354, 1.9),
        factors=(1.01, 1.36, 1.23, 0.873),
        launch=58.7,
    ),
    "winograd-fused": find_winograd_fused,
    "fft": find_fft,
    "fft-tiling": find_fft_tiling,
}
TENSOR_CORE_ALGORITHMS: dict[str, Algorithm] = {
    "tensor-cores": find_tensor_cores,
    "tensor-cores-two-copies": find_tensor_cores_two_copies,
    "tensor-cores-three-copies": find_tensor_cores_three_copies,
    "tensor-cores-split-k": find_tensor_cores_split_k,
}


def find_likely_bytes(offers: tuple[Offer, ...]) -> tuple[int, int, int]:
    """Return the workspace of the fastest offer, and the least and most of those that may be as fast."""
    fastest = min(offers, key=lambda offer: offer.microseconds)
    longest = LIKELY * fastest.microseconds
    likely = [offer.bytes for offer in offers if offer.microseconds <= longest]

    return fastest.bytes, min(likely), max(likely)


@lru_cache(maxsize=4096)
def find_offers(call: Convolution, gpu: Gpu, limit_bytes: int) -> tuple[Offer, ...]:
    """Return the algorithms that TensorFlow tries, in order, within its limit of a workspace.

    TensorFlow times each algorithm at the first call of a shape and keeps the fastest
    (``BestCudnnConvAlgorithm`` in ``gpu_utils.cc``).
    """
    on = ConvolutionOnCard(call, gpu)
    algorithms: dict[str, Algorithm] = {}

    if on.has_cuda_core_algorithms:
        algorithms |= CUDA_CORE_ALGORITHMS
    if on.uses_tensor_cores:
        algorithms |= TENSOR_CORE_ALGORITHMS

    found = []

    for name, algorithm in algorithms.items():
        offer = algorithm(on)
        if offer is not None and offer.bytes <= limit_bytes:
            found.append(offer._replace(name=name))

    # Groups, float64, and three axes except on Hopper: most of 30 rows have no workspace.
    return tuple(found) or (Offer(0, 1.0, "unmeasured"),)
