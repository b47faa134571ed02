"""The data model: records in run folders, the graph of tensors, recordings, units and errors.

Inputs: JSON files and messages of child processes. Outputs: typed records that are checked when
they are read. Restrictions: imports no other package of the project.
"""

__version__ = "0.1.0"
