"""What each figure is drawn with from the golden database."""

from __future__ import annotations

from typing import Any

DIR_1 = {"datasets": ["digits"], "partitions": ["Dir(1)"]}


PATHOLOGICAL = {"datasets": ["digits"], "partitions": ["Pathological(2)"]}


RANKED = ["fedprox", "fedprox+ala", "ditto", "ditto+ala", "fedrep", "fedrep+ala"]


# What is asked of a figure, so that it shows what the check of the same name expects.
OPTIONS: dict[str, dict[str, Any]] = {
    "curves": DIR_1,
    "distribution": {"datasets": ["tiny", "digits"], "partitions": ["Dir(0.01)", "groups(5)"]},
    "overhead": PATHOLOGICAL,
    "scalability": {"datasets": ["digits"], "methods": ["fedavg", "ditto"]},
    "heterogeneity": {"datasets": ["tiny"]},
    "fairness": DIR_1,
    "ranks": {"methods": RANKED, "partitions": ["Dir(0.1)"]},
}
