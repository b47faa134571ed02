"""From a target to a result: what the commands and the public API both call."""

from analyzer.session.public_calls import diff, estimate, open_trace, trace
from analyzer.session.watched_steps import Watched, begin_watch, callback_class, end_watch, watch

__all__ = [
    "Watched",
    "begin_watch",
    "callback_class",
    "diff",
    "end_watch",
    "estimate",
    "open_trace",
    "trace",
    "watch",
]
