"""XLA's compiler for NVIDIA cards, on a machine that has none: a module in, its memory plan out.

The compiler is the shared library of the wheel jax-cuda12-pjrt, an optional extra. It runs in a child
process; whatever it does there, the caller gets a plan or a ``CompilerUnavailable``.
"""

from __future__ import annotations
