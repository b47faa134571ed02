"""The report: the JSON that ``analyze`` writes, as typed records, written and read in one place.

``ReportFile`` is the report of one step,
``DiffFile`` that of two. Every figure is a field with its unit
in its name: ``_bytes``, ``_s`` (seconds), ``_ps`` (picoseconds), ``_ratio`` (1 is the whole).
"""
