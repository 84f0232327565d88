"""pflbench: a benchmark for personalized federated learning with a results database."""

__version__ = "0.1.0"
