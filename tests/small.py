"""Small federations on made-up data: those of the contract suite."""

from pflbench.contract.small import CLASSES, EXECUTORS, SHAPES, BatchNormNet, executor, federation, tensors, train

__all__ = ["CLASSES", "EXECUTORS", "SHAPES", "BatchNormNet", "executor", "federation", "tensors", "train"]
