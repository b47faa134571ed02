"""The attribution of a trace's allocations, from its marks, its note and its graph.

The capture recorded the address of each variable before the first step and after each step. Between two
such snapshots a variable may move (an assignment replaces its buffer, a write copies it while another op
reads it): the old buffer is the variable's until it is freed, then the new one. A failed step has no
snapshot after it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import CONVOLUTIONS, TensorSpec
