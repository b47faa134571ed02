"""From a target or a saved trace to a `Result`: captures, saved runs, many hosts, device accounts.

Inputs: a target, a run folder or a trace, and options. Outputs: a `Result` and its folder.
Restrictions: imports TensorFlow only through `capture`, in a child process where possible.
"""
