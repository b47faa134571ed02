"""XLA's compiler for NVIDIA cards, on a machine without one: a module and a card to a memory plan.

The compiler is the shared library of the optional wheel jax-cuda12-pjrt, in a child process.
"""
