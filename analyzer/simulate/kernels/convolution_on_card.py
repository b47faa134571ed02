"""A convolution as cuDNN gets it, and the quantities on a card that its algorithms share."""

import msgspec

from analyzer.cards import Gpu

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


class Convolution(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes of one call of cuDNN."""

    direction: str  # one of ``PASSES``
    image: tuple[int, ...]  # batch, channels and axes of the convolved tensor
    kernel: tuple[int, ...]  # filters and axes of the filter
    result: tuple[int, ...]  # axes of the forward output
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

    def _set_card(self, gpu: Gpu) -> None:
        self.capability_text = gpu.capability_text
        self.multiprocessors = gpu.sm_count

        lanes = gpu.sm_count * gpu.fp32_lanes
        self.operations = 2 * lanes * gpu.clock_mhz  # in float32, in a microsecond
        self.bandwidth = gpu.bandwidth_bytes_s / 1e6  # bytes in a microsecond

    def _set_kind(self, call: Convolution, gpu: Gpu) -> None:
        """Decide which cores compute, and whether a measurement of this kind is published."""
        self.uses_tensor_cores = has_tensor_cores(call.dtype, gpu)
        is_measured = call.dtype in ("float32", "float16")
        if call.dtype == "bfloat16":
            is_measured = self.uses_tensor_cores

        self.is_measured = is_measured
        self.has_cuda_core_algorithms = (
            is_measured
            and call.groups == 1
            and not self.is_deep
            and call.dtype != "bfloat16"
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
