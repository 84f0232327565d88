"""The options of `pflbench run` that decide a run's specification, each declared once: name, type and help.

`pflbench.cli` makes the command line of them, `run.plan` the specifications; defaults and limits are those of `pflbench.spec`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal


def option_field(panel: str | None, help: str, *flags: str, default: Any = None, **more: Any) -> Any:
    """A field that is an option on the command line. panel: of the help; more: arguments of `typer.Option`."""
    return field(default=default, metadata={"panel": panel, "help": help, "flags": flags, "more": more})


_main: Callable[..., Any] = partial(option_field, None)
_partition: Callable[..., Any] = partial(option_field, "Partition")
_training: Callable[..., Any] = partial(option_field, "Training")
_behaviour: Callable[..., Any] = partial(option_field, "Behaviour of clients")


@dataclass(frozen=True)
class RunOptions:
    """The options by field. None means "not given": the paper's value for that dataset, which the help names."""

    methods: tuple[str, ...] = _main("A method; repeat for several.", "--method", "-m", default=())
    datasets: tuple[str, ...] = _main(
        "A dataset (see `pflbench data list`), folder:PATH, domains:PATH, npz:PATH, csv:PATH, leaf:PATH or FILE.py:NAME; "
        "repeat for several. Default: digits.",
        "--dataset",
        "-d",
        default=(),
    )
    data_dir: Path = Path("data")
    model: str | None = _main("A model, or your own as FILE.py:NAME. Default: the paper's model for the dataset.")
    settings: tuple[str, ...] = _main(
        "A hyperparameter (see `pflbench methods show`), e.g. fedala.p=2; repeatable. In `run` and `sweep` a list means a run "
        "for each value: fedala.p=1,2,4.",
        "--set",
        default=(),
        metavar="METHOD.NAME=VALUE",
    )
    ala: bool = _main("Plug ALA into each method, as in Table 4; the same as -m NAME+ala.", "--ala", default=False)
    preset: str | None = _main(
        "A set of hyperparameters, which --set overrides. fedala2022: PFLlib's when the FedALA paper was written; "
        "pfllib2025: PFLlib's in November 2025; heurfedamp2021: those of HeurFedAMP's authors.",
    )
    seed: int | None = _main("Seed for initialisation, batch order and client sampling. Default: 0.")
    seeds: str | None = _main("Several runs of each method: 0-4 or 0,2,5.", metavar="LIST")

    partition: str | None = _partition(
        "dirichlet, pathological, iid, groups, natural (a client for each owner of samples) or pfllib:PATH (a PFLlib folder). "
        "Default: dirichlet.",
        "--partition",
        "-p",
        metavar="SCHEME",
    )
    clients: int | None = _partition("Number of clients. Default: 20 (digits: 10); natural: all owners with enough samples.")
    beta: float | None = _partition("dirichlet: smaller is more heterogeneous. Default: 0.1.")
    classes_per_client: int | None = _partition("pathological: classes a client holds. Default: 2 of 10, 10 of 100.")
    balanced: bool | None = _partition("pathological: equal shares of a class. Default: unbalanced.", "--balanced/--unbalanced")
    min_samples: int | None = _partition(
        "dirichlet, pathological, natural: fewest samples of a client. Default: 40, or half an equal share if that is less; "
        "dirichlet: what draws can reach of it; natural: 2."
    )
    iid_shares: Literal["equal", "reference"] | None = _partition("iid: equal shares, or PFLlib's unequal ones. Default: equal.")
    groups: int | None = _partition("groups: number of groups of clients. Default: 5.")
    dominant_share: float | None = _partition("groups: share of a client's samples from its group's classes. Default: 0.8.")
    group_sizes: str | None = _partition("groups: samples per client of each group. Default: equal.", metavar="N,N,...")
    partition_seed: int | None = _partition("Seed of the partition, the same for all --seeds, as in the paper. Default: 1.")
    test_share: float | None = _partition("Share of each client's samples used as its test set. Default: 0.25.")
    central_test: bool | None = _partition(
        "Clients share only the official training part; the global model is also tested on the official test part.",
        "--central-test",
    )

    rounds: int | None = _training("Default: 2000 (digits: 50).", "--rounds", "-r")
    local_epochs: int | None = _training("Default: 1.")
    batch_size: int | None = _training("Default: 10.")
    lr: float | None = _training("Local learning rate. Default: the paper's for model and dataset; adamw: 0.001.")
    join_ratio: float | None = _training("Share of the clients that join a round. Default: 1.")
    eval_every: int | None = _training("Evaluate every so many rounds. Default: 1.")
    evaluate: Literal["participants", "all"] | None = _training(
        "Which clients to evaluate when --join-ratio is below 1; all: also those outside the cohort, as if they had joined. "
        "Default: participants."
    )
    drop_last: Literal["auto", "always", "never"] | None = _training(
        "Drop a client's last partial batch; auto keeps it if it is the only one. Default: auto."
    )
    bn_buffers: Literal["local", "average", "reset"] | None = _training(
        "BatchNorm's running statistics: kept by each client, averaged, or reset in each round. Default: local."
    )
    dtype: Literal["float32", "float64", "tf32"] | None = _training(
        "Default: float32. tf32: faster matrix products on a GPU, with factors rounded to 10 bits."
    )
    optimizer: Literal["sgd", "momentum", "adamw"] | None = _training(
        "Optimizer for local training (PyTorch's SGD or AdamW). Default: sgd."
    )
    momentum: float | None = _training("momentum: the momentum factor. Default: 0.9.")
    weight_decay: float | None = _training("sgd, momentum: as L2; adamw: decoupled. Default: 0; adamw: 0.01.")
    optimizer_state: Literal["fresh", "kept"] | None = _training(
        "momentum, adamw: reset a client's state in each round, or keep it until the client joins again. Default: fresh."
    )
    lr_schedule: Literal["constant", "cosine", "step"] | None = _training(
        "Schedule of the local learning rate over the rounds. cosine: half a cosine, to 0 after the last round; step: see "
        "--lr-step-every. Default: constant."
    )
    lr_step_every: int | None = _training("step: multiply the rate by --lr-gamma every so many rounds.", metavar="ROUNDS")
    lr_gamma: float | None = _training("step: the factor of the learning rate. Default: 0.1.")
    val_share: float | None = _training(
        "Share of each client's training samples that is set aside for validation: `table accuracy --round-rule val` chooses "
        "rounds by it. Default: 0."
    )
    eval_repeats: int | None = _training(
        "Readings of a test that is random, as Per-FedAvg's on one batch; their mean counts. Default: 1.", metavar="N"
    )
    new_clients: int | None = _training(
        "Set the partition's last K clients aside: they never join, and after the last round adapt what the method gives a new "
        "client. See `table new-clients`. Default: 0.",
        metavar="K",
    )
    new_every: int | None = _training(
        "--new-clients: test them every so many rounds, too. Default: after the last round.", metavar="ROUNDS"
    )
    new_epochs: int | None = _training("--new-clients: they adapt for so many epochs, and are tested after each. Default: 5.")
    new_samples: int | None = _training("--new-clients: at most so many training samples of each. Default: all.", metavar="N")

    join_ratio_low: float | None = _behaviour(
        "In each round draw the join ratio uniformly from this to --join-ratio. Default: always --join-ratio.", metavar="R"
    )
    dropout: float | None = _behaviour(
        "Probability with which a client fails after its training: the round's work is lost. Default: 0.", metavar="P"
    )
    flops_per_second: float | None = _behaviour(
        "Speed of the fastest device: local training then takes simulated time. Default: it takes none.", metavar="X"
    )
    slowest: float | None = _behaviour(
        "Devices are up to so many times slower than the fastest: log-uniform, by --partition-seed. Default: 1.", metavar="F"
    )
    bandwidth: float | None = _behaviour(
        "Bytes per second of each client's network, each way. Default: transfers take no time.", metavar="BYTES"
    )
    latency: float | None = _behaviour("Simulated latency of each client's network, each way. Default: 0.", metavar="SECONDS")
    deadline: float | None = _behaviour(
        "Simulated time of a round: the work of clients that would take longer is lost. Default: none.", metavar="SECONDS"
    )
    upload: str | None = _behaviour(
        "int8: clients send the change of a model as 8-bit integers; topk:0.01: its largest 1 %, the rest later. Default: full.",
        metavar="full|int8|topk:SHARE",
    )
