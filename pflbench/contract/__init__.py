"""What every method must keep, built in or not: the contract suite, the small federations it uses, a template to begin with.

Needs pytest, which is no dependency of pflbench: only `suite` imports it.
"""
