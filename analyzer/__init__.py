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
    "Result",
    "__version__",
    "diff",
    "estimate",
    "fit",
    "fits",
    "open_trace",
    "trace",
]

_FITTING = frozenset({"FitAnswer", "fit", "fits"})
_LAZY = frozenset(__all__) - {"__version__"}

if TYPE_CHECKING:
    from analyzer.batch_fit.fit_calls import fit, fits
    from analyzer.report.diff_result import Diff
    from analyzer.scaling.fit_answer import FitAnswer
    from analyzer.session import Result, diff, estimate, open_trace, trace


def __getattr__(name: str) -> Any:
    """Load the public functions when they are first used."""
    if name in _FITTING:
        from analyzer.batch_fit import fit_calls

        return getattr(fit_calls, name)
    if name in _LAZY:
        from analyzer import session

        return getattr(session, name)
    raise AttributeError(f"module 'analyzer' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public functions before they are loaded."""
    return sorted({*globals(), *_LAZY})
