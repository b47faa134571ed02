"""XLA's compiler for NVIDIA cards, on a machine without one.

Input: a serialized module and a card. Output: the memory plan of the compiled module, with the range
of the step's peak. The compiler is the shared library of the optional wheel jax-cuda12-pjrt. It runs
in a child process; the caller gets a plan or a ``CompilerUnavailable``.
"""

from __future__ import annotations
