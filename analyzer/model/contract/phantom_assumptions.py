"""Settings for the answers of NVIDIA's libraries on a simulated card.

TensorFlow asks these libraries for the sizes of workspaces and reserves. The answers depend on the card
and on the library's version, so that each is a setting with an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One setting.

    Attributes:
        name: The name for ``--assume NAME=N``.
        what: What the setting is.
        usual: The default.
        most: The largest value that TensorFlow accepts or that is plausible.
        is_bytes: Whether the value is in bytes; otherwise it is a plain number.
        source: Source of the default and the upper bound.
    """

    name: str
    what: str
    usual: int
    most: int
    is_bytes: bool
    source: str


WORKSPACE: Final = Assumption(
    name="workspace",
    what="workspace of each convolution, in place of those of cuDNN's algorithms",
    usual=0,
    most=8 << 30,
    is_bytes=True,
    source="TensorFlow rejects plans above TF_CUDNN_WORKSPACE_LIMIT_IN_MB (8 GiB; 4 GiB for fused "
    "convolutions); if the workspace cannot be allocated, it uses a plan without one",
)
PRODUCT_WORKSPACE: Final = Assumption(
    name="product-workspace",
    what="workspace of each matrix product of cuBLASLt",
    usual=0,
    most=4 << 30,
    is_bytes=True,
    source="TF_CUBLAS_WORKSPACE_LIMIT_IN_MB (4 GiB); cuBLASLt's heuristic chooses the size",
)
RECURRENT_RESERVE: Final = Assumption(
    name="recurrent-reserve",
    what="elements reserved for each unit, time step and example of a recurrent layer (0 means 6 for "
    "an LSTM, 5 for a GRU, 2 for a simple one)",
    usual=0,
    most=12,
    is_bytes=False,
    source="gates, state and its tanh; cuDNN does not document the layout, so the bound is twice that",
)
BATCH_NORM_RESERVE: Final = Assumption(
    name="batch-norm-reserve",
    what="reserve space of each batch normalization",
    usual=0,
    most=64 << 20,
    is_bytes=True,
    source="cudnnGetBatchNormalizationTrainingExReserveSpaceSize: 0 without a fused activation, one "
    "bit an element with one",
)
CONTEXT: Final = Assumption(
    name="context",
    what="memory of the driver's context on a card",
    usual=320 << 20,
    most=450 << 20,
    is_bytes=True,
    source="TensorFlow's start-up line in public logs of T4, V100, A100, H100, L4 and RTX 3090: 115 to "
    "450 MiB",
)
ASSUMPTIONS: Final = (
    WORKSPACE,
    PRODUCT_WORKSPACE,
    RECURRENT_RESERVE,
    BATCH_NORM_RESERVE,
    CONTEXT,
)
