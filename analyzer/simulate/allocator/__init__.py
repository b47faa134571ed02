"""TensorFlow's BFC allocator: replay a sequence, find its minimum limit, explain the pool.

Input: a ``Sequence`` of requests and frees, and ``BfcOptions``. Output: a ``Replay`` with the pool after
each operation, or the minimum limits. A replay is exact for traces that begin with the process.
``cuda_malloc_async`` has no chunks and regions.
"""
