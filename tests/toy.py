"""Task Q2 of methods.md 0.4: that of the contract package, with which third parties test their methods too."""

from pflbench.contract.toy import EXECUTORS, Quadratic, executor, half_square, q2, rounds

__all__ = ["EXECUTORS", "Quadratic", "executor", "half_square", "q2", "rounds"]
