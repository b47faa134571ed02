"""Predict, attribute and explain the memory of TensorFlow and Keras training steps.

    >>> import analyzer
    >>> result = analyzer.trace("keras:MobileNetV2", batch_size=8)
    >>> result.peak_bytes
    >>> result.allocations          # a pandas DataFrame with one row per allocation
    >>> result.to_html("report.html")

Importing this package imports neither TensorFlow nor Keras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from analyzer.model import __version__

if TYPE_CHECKING:
    from analyzer.capture.watch.watch_block import MemoryCallback
    from analyzer.fitting.fit_answer import FitAnswer
    from analyzer.fitting.fit_target import fit, fits
    from analyzer.report.result import Diff, Result
    from analyzer.session.device_report import device
    from analyzer.session.target_results import diff, estimate, open_trace, trace, watch

# Module of each public name. `__getattr__` imports it on first use.
_MODULES = {
    "Diff": "report.result",
    "FitAnswer": "fitting.fit_answer",
    "Result": "report.result",
    "device": "session.device_report",
    "fit": "fitting.fit_target",
    "fits": "fitting.fit_target",
    **dict.fromkeys(
        ("diff", "estimate", "open_trace", "trace", "watch"), "session.target_results"
    ),
}

__all__ = [
    "Diff",
    "FitAnswer",
    "MemoryCallback",
    "Result",
    "__version__",
    "device",
    "diff",
]
__all__ += ["estimate", "fit", "fits", "open_trace", "trace", "watch"]


def load_ipython_extension(shell: Any) -> None:
    """Register the notebook magic: ``%load_ext analyzer``."""
    from analyzer.cli.plugins import ipython_magics

    ipython_magics.load_ipython_extension(shell)


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "MemoryCallback":
        from analyzer.session.target_results import callback_class

        return callback_class()

    if name in _MODULES:
        return getattr(import_module(f"analyzer.{_MODULES[name]}"), name)

    raise AttributeError(f"module 'analyzer' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
