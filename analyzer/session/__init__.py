"""From a target, a run folder or a trace to a ``Result``; and the account of a card's memory.

Inputs: a target with options, a folder with traces of one or many hosts, or the driver of a card.
Outputs: a ``Result`` with its run folder, or a ``DeviceReport``.
Restrictions: TensorFlow is imported only through ``capture``, in a child process if possible.
"""
