"""Find the largest batch or input size that fits a memory limit.

Inputs: a target and a limit. Outputs: a `FitAnswer`, its text and page, sweeps over many configurations.
Restrictions: each size is estimated by `session`; this package predicts nothing itself.
"""
