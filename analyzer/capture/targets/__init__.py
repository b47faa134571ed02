"""Load a target and make it a step that can be called.

Input: the text that names a target, and the capture options. Output: a ``Program``, the step with its
arguments, models and optimizers. Restrictions: an option that the target cannot honour raises
``InputError``; a target that cannot be loaded or called raises ``TargetError``.
"""
