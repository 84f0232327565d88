"""Runs that leave a database and runs that come in."""
