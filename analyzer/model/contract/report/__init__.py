"""The JSON documents of the package as typed records, with their reading and writing.

The name of a number ends with its unit: ``_bytes``, ``_s``, ``_ps``, ``_ratio`` (0 to 1).
"""
