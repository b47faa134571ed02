"""Explains an out-of-memory log: the request, the state of the allocator, the cause, and advice.

A log of TensorFlow 2.4 or later in any format (``lines``) becomes a list of failures (``explain_log``).
Their figures, causes and advice make the document. The log is untrusted; TensorFlow is not imported.
"""

from analyzer.model.contract.oom_file import OomDocument
from analyzer.oom.explain_log import OomReport, read_oom_log
from analyzer.oom.failures import Cause

__all__ = ["Cause", "OomDocument", "OomReport", "read_oom_log"]
