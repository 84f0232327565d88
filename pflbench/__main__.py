"""`python -m pflbench`."""

from pflbench.cli import main

main()
