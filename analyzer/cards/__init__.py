"""GPU cards: their figures and the memory that TensorFlow may use.

Inputs: a card's name. Outputs: a ``Gpu`` with its figures, and sizes with their sources.
Restrictions: never starts a program, creates a CUDA context or imports TensorFlow.
"""
