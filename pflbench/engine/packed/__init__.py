"""Several runs on one executor."""
