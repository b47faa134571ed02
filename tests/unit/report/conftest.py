"""Let the tests of the page import their builder by name, whatever pytest was started from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
