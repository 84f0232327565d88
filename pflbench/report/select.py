"""`--select`: which round counts as a run's result. Decided when a table is made, not when the run is stored."""

from __future__ import annotations

from pflbench.errors import UserError
from pflbench.store.read import Select

VALID = "best, last, mean-last:K"


def parse(text: str) -> Select:
    """'best' | 'last' | 'mean-last:K', K >= 1 evaluated rounds. Raises UserError for anything else."""
    if text == "best":
        return Select("best")
    if text == "last":
        return Select("last")
    rule, _, count = text.partition(":")
    if rule == "mean-last" and count.isascii() and count.isdigit() and int(count) > 0:
        return Select("mean-last", int(count))
    raise UserError(f"Unknown selection '{text}'.", f"Valid: {VALID}, e.g. mean-last:10 for the mean of the last 10 rounds.")


def sentence(select: Select) -> str:
    """What a table says about its selection; the best round is chosen on test data (methods.md 2.1)."""
    if select.rule == "best":
        return "Result of a run: its best round, chosen on the test data, which is optimistic."
    if select.rule == "last":
        return "Result of a run: its last evaluated round."
    return f"Result of a run: mean of its last {select.last} evaluated rounds."
