"""Of which runs in the golden database each figure is drawn, so that it shows what the check of the same name expects."""

from __future__ import annotations

from pflbench.report.selection import Filters

DIR_1 = Filters(datasets=["digits"], partitions=["Dir(1)"])
RANKED = ["fedprox", "fedprox+ala", "ditto", "ditto+ala", "fedrep", "fedrep+ala"]
FILTERS = {
    "curves": DIR_1,
    "distribution": Filters(datasets=["tiny", "digits"], partitions=["Dir(0.01)", "groups(5)"]),
    "overhead": Filters(datasets=["digits"], partitions=["Pathological(2)"]),
    "scalability": Filters(methods=["fedavg", "ditto"], datasets=["digits"]),
    "heterogeneity": Filters(datasets=["tiny"]),
    "fairness": DIR_1,
    "clients": Filters(datasets=["fashionmnist"]),
    "ranks": Filters(methods=RANKED, partitions=["Dir(0.1)"]),
}
