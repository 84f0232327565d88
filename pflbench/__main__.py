"""`python -m pflbench`."""

import sys

from pflbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
