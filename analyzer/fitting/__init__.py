"""Find the largest batch or input size that fits a memory limit.

Inputs: a target and a limit. Outputs: a ``FitAnswer`` and its document.
Restrictions: ``session`` estimates each size; this package predicts nothing itself.
"""
