"""Reproduces a table or figure of the papers: which runs it needs, which exist, and how long the missing ones take."""
