"""Start the command line from a checkout: ``python cli.py trace keras:MobileNetV2``."""

from analyzer.cli import main

if __name__ == "__main__":
    main()
