"""`python -m fastmax` is the command `fastmax`."""

import sys

from fastmax.cli import main

if __name__ == "__main__":
    sys.exit(main())
