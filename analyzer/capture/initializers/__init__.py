"""Build variables without their memory, and record how they are made.

Input: a block of code that builds a model. Output: ``Births``, the variables in order of creation, with
the allocations and frees of each initializer. Restrictions: an assigned value of a large variable is
dropped; code that needs the values of weights must build the model with ``hollow=False``.
"""
