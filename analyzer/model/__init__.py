"""The data model: records in run folders, the graph of tensors, recordings, units and errors.

Inputs: JSON files of run folders and messages of child processes. Outputs: typed records whose
fields are checked when they are read. Restrictions: imports no other package of the project.
"""
