"""GPU cards: their figures and the memory that TensorFlow may use.

Inputs: a card's name. Outputs: a ``Gpu`` with its figures, and sizes with their sources.
Restrictions: never starts a program, creates a CUDA context or imports TensorFlow.
"""

from analyzer.cards.catalogue import Gpu as Gpu
from analyzer.cards.catalogue import all_gpus as all_gpus
from analyzer.cards.catalogue import check_limit as check_limit
from analyzer.cards.catalogue import find_gpu as find_gpu
from analyzer.cards.catalogue import gpus_named as gpus_named
from analyzer.cards.catalogue import memory_beside_pool as memory_beside_pool
from analyzer.cards.catalogue import memory_limit as memory_limit
from analyzer.cards.catalogue import process_overhead as process_overhead
from analyzer.cards.catalogue import system_reserve as system_reserve
