"""Clients as rows: the federation's data and models, and the verbs with which methods train them (design: clients are rows)."""
