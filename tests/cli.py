"""The command line of the installed package; the checkout's own would import the checkout."""

from analyzer.cli import main

if __name__ == "__main__":
    main()
