"""The data model: records in run folders, the graph of tensors, recordings, units and errors.

Inputs and outputs: typed records, checked when they are read. Restrictions: imports no other package.
"""
