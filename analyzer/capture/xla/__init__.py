"""Lower and compile the functions of a step that XLA compiles, without running them.

Input: a concrete function and the ops around its compiled functions. Output: their modules, memory
plans, allocations and compile-time inputs. Restrictions: plans are for this machine's CPU; a function
that cannot be compiled adds a message, or raises ``TargetError`` if it is the whole step.
"""
