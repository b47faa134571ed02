"""Predict, attribute and explain the memory of TensorFlow and Keras training steps.

    >>> import analyzer
    >>> result = analyzer.trace("keras:MobileNetV2", batch_size=8)
    >>> result.peak_bytes
    >>> result.allocations          # a pandas DataFrame, one row a buffer
    >>> result.to_html("report.html")

Importing this package imports neither TensorFlow nor Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyzer.version import __version__

__all__ = [
    "Diff",
    "FitAnswer",
    "MemoryCallback",
    "Result",
    "__version__",
    "device",
    "diff",
    "estimate",
    "fit",
    "fits",
    "open_trace",
    "trace",
    "watch",
]

_FITTING = frozenset({"FitAnswer", "fit", "fits"})
_LAZY = frozenset(__all__) - {"__version__"}

if TYPE_CHECKING:
    from analyzer.batch_fit.fit_calls import fit, fits
    from analyzer.capture.watch.keras_callback import MemoryCallback
    from analyzer.devices.device_reading import device
    from analyzer.report.diff_result import Diff
    from analyzer.report.result import Result
    from analyzer.scaling.fit_answer import FitAnswer
    from analyzer.session import diff, estimate, open_trace, trace, watch


def load_ipython_extension(shell: Any) -> None:
    """Register the magics in a notebook: ``%load_ext analyzer``."""
    from analyzer.plugins import ipython_magics

    ipython_magics.load_ipython_extension(shell)


def __getattr__(name: str) -> Any:
    """Load the public functions when they are first used."""
    if name in _FITTING:
        from analyzer.batch_fit import fit_calls

        return getattr(fit_calls, name)
    if name == "Diff":
        from analyzer.report.diff_result import Diff

        return Diff
    if name == "Result":
        from analyzer.report.result import Result

        return Result
    if name == "device":
        from analyzer.devices.device_reading import device

        return device
    if name == "MemoryCallback":
        from analyzer.session import callback_class

        return callback_class()
    if name in _LAZY:
        from analyzer import session

        return getattr(session, name)
    raise AttributeError(f"module 'analyzer' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public functions before they are loaded."""
    return sorted({*globals(), *_LAZY})
