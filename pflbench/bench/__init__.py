"""Measuring: what a round must cost on this machine, what it does cost, and whether two measurements differ."""
