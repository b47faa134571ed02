"""Simulated cards: TensorFlow's own GPU runtime without a card, a driver or CUDA.

Input: cards of the catalogue. Output: environment variables under which a child process loads libraries
with the names of CUDA's, whose device memory is a counter and whose kernels do nothing. Restrictions:
Linux on x86-64, TensorFlow's CUDA wheel. See ``benchmarks/results/simulated-card.md``.
"""
