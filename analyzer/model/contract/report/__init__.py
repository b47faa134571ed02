"""The JSON documents of the package as typed records, with their reading and writing.

``ReportFile`` is the report of one step, ``DiffFile`` the difference of two. The name of a number ends
with its unit: ``_bytes``, ``_s`` (seconds), ``_ps`` (picoseconds), ``_ratio`` (0 to 1).
"""
