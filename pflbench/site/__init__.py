"""The pages of `pflbench report` and `pflbench serve`: what they show as plain data, and its rendering as HTML."""
