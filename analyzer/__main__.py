"""``python -m analyzer`` is the command ``analyze``."""

from analyzer.cli import main

main()
