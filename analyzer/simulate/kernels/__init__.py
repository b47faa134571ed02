"""Kernel rules: the buffers that an op allocates, forwards, aliases and holds on a device.

Input: a ``Call`` (op type, shapes, constant inputs). Output: a ``MemoryPlan``. The prediction gets all
rules of a device as one ``KernelDevice``. Op types without a rule count as allocating.
"""
