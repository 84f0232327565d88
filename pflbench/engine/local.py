"""Local training: SGD, a method's own steps, and inner loops. The functions are methods of `Federation`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pflbench.engine import requests
from pflbench.engine.batches import Plan
from pflbench.errors import UserError

if TYPE_CHECKING:
    from pflbench.engine.federation import Federation

FEATURES_AT_ONCE = 128  # of each client


def sgd(fed: Federation, rows: Tensor, S: Tensor, **how: Any) -> Tensor:
    """Local training: SGD from rows [c, P] over E epochs -> [c, P] (methods.md 0.1). Takes what `fit` takes."""
    return fed.fit(rows, S, **how).models


def fit(
    fed: Federation,
    rows: Tensor,
    S: Tensor,
    *,
    epochs: int | None = None,
    plan: Plan | None = None,
    columns: slice = requests.ALL,
    summed: slice = requests.NONE,
    penalty: requests.Penalty | None = None,
    objective: requests.Objective | None = None,
    references: Sequence[Tensor] = (),
    lr: float | None = None,
    model: str = "model",
    save_statistics_to: str | None = None,
    moments: Mapping[str, Tensor] = {},
    per_step: Mapping[str, Tensor] = {},
    **given: requests.Argument,
) -> requests.Trained:
    """SGD, or the protocol's optimizer, from rows [c, P] along a plan, by default E epochs, with the losses [c].

    penalty(w, **given) returns the gradient of a penalty and its value; summed, objective, references and per_step: see
    engine.requests.Sgd. lr: another rate than the protocol's.
    model: which of the clients' models is trained; each has its own BatchNorm buffers and batch order. save_statistics_to: the
    model whose buffers are overwritten by the new ones, by default the same. moments: the optimizer's state after an earlier
    part of the same training.
    Raises Diverged if a client ends with a non-finite parameter.
    """
    plan = fed.batches(S, epochs, purpose=_purpose(model)) if plan is None else plan
    lasting = fed.lasting_moments(save_statistics_to or model, columns)
    if not moments and fed.optimizer is not None:
        moments = {name: value[S] for name, value in lasting.items()} or fed.optimizer.begin(rows[:, columns])
    request = requests.Sgd(
        plan,
        rows,
        fed.buffers_of(model)[S],
        fed.lr if lr is None else lr,
        columns,
        summed,
        penalty,
        given,
        objective,
        references,
        per_step,
        fed.optimizer,
        moments,
    )
    done = _of_head_alone(fed, request) if _head_suffices(fed, request) else fed.executor.do(request)
    fed.require_finite(done.models, S, "local training")
    fed.buffers_of(save_statistics_to or model)[S] = done.buffers
    for name, value in lasting.items():
        value[S] = done.moments[name]
    _note(fed, save_statistics_to or model, S, plan, done.loss, rows, done.models)
    return done


def train_by(
    fed: Federation,
    step: requests.Step,
    rows: Tensor,
    S: Tensor,
    *,
    carry: Mapping[str, Tensor],
    given: requests.StepArguments | None = None,
    per_step: Mapping[str, Tensor] | None = None,
    plan: Plan | None = None,
    parts: int = 1,
    models: tuple[str, ...] = ("model",),
    save_statistics_to: tuple[str, ...] | None = None,
) -> dict[str, Tensor]:
    """Local training by a step of the method's own: carry <- step(grad, **carry, **given, **per_step) for every batch.

    rows [c, P] are the models to begin with; carry: tensors [c, ...], the trained model first; other arguments: see
    engine.requests.Scan. models: the clients' models that the step differentiates: `grad(w, of=k)` is the gradient of models[k].
    Returns the new carry. Raises Diverged for a non-finite value in it, UserError if the protocol has another optimizer than SGD.
    """
    if fed.optimizer is not None:
        raise UserError(
            "No other optimizer can take the place of a method's own step.",
            "Leave out --optimizer and --weight-decay. The method's author says so by `optimizer_refused` in its class.",
        )
    plan = fed.batches(S, purpose=_purpose(models[0]), parts=parts) if plan is None else plan
    buffers = torch.stack([fed.buffers_of(model)[S] for model in models], dim=1)
    done = fed.executor.do(requests.Scan(plan, step, rows, carry, given or {}, buffers, per_step=per_step or {}, parts=parts))
    for value in (done.loss.unsqueeze(-1), *done.carry.values()):
        fed.require_finite(value, S, "local training")
    for k, model in enumerate(save_statistics_to or models):
        fed.buffers_of(model)[S] = done.buffers[:, k]
    _note(fed, (save_statistics_to or models)[0], S, plan, done.loss, rows, done.carry[next(iter(carry))])
    return done.carry


@dataclass(frozen=True)
class InnerLoop:
    """The clients, batches and models of an inner loop; made by `inner_loop`."""

    executor: requests.Executor
    clients: Tensor
    plan: Plan
    base: Tensor
    buffers: Tensor
    columns: slice

    def take(self, positions: Tensor) -> InnerLoop:
        """The inner loop of some of its clients, by position [k] (on the host)."""
        at = positions.to(self.clients.device)
        plan, clients, base, buffers = self.plan.take(positions.tolist()), self.clients[at], self.base[at], self.buffers[at]
        return replace(self, clients=clients, plan=plan, base=base, buffers=buffers)


@contextmanager
def inner_loop(fed: Federation, S: Tensor, plan: Plan, base: Tensor, *, columns: slice = requests.ALL) -> Iterator[InnerLoop]:
    """Context for inner loops (`scan`) on models `base` [c, P], of which only `columns` change, along the plan's batches.

    If only the head changes, the layers below it run once for all inner loops inside. BatchNorm's new buffers are discarded.
    """
    buffers = fed.buffers_of("model")[S]
    if columns != fed.flat.head or not fed.flat.has_features or not plan.steps().any():
        yield InnerLoop(fed.executor, S, plan, base, buffers.unsqueeze(1), columns)
        return
    head = fed.executor.do(requests.ExtractFeatures(plan, base, buffers))
    try:
        yield InnerLoop(head.executor, S, head.plan, base[:, columns], buffers[:, None, :0], requests.ALL)
    finally:
        head.executor.close()


def scan(
    fed: Federation,
    step: requests.Step,
    loop: InnerLoop,
    *,
    carry: Mapping[str, Tensor],
    given: requests.StepArguments,
    per_step: Mapping[str, Tensor] | None = None,
    objective: requests.Objective | None = None,
) -> requests.Scanned:
    """An inner loop other than plain SGD: carry <- step(grad, **carry, **given, **per_step) for every batch; see `Scan`.

    carry: tensors [c, ...]. Raises Diverged for a non-finite loss or carry.
    """
    request = requests.Scan(
        loop.plan, step, loop.base, carry, given, loop.buffers, loop.columns, per_step or {}, objective=objective
    )
    done = loop.executor.do(request)
    for value in (done.loss.unsqueeze(-1), *done.carry.values()):
        fed.require_finite(value, loop.clients, "an inner loop")
    return done


def _head_suffices(fed: Federation, request: requests.Sgd) -> bool:
    """Whether only the head is trained, so that the layers below it need to run once for every sample, not in every epoch.

    With BatchNorm they must: a sample's features depend on its batch, and running statistics change in every epoch.
    """
    plain = request.penalty is None and request.objective is None and request.summed == requests.NONE
    head_only = request.columns == fed.flat.head
    return plain and head_only and fed.flat.has_features and not fed.flat.has_batch_norm and bool(request.plan.steps().any())


def _of_head_alone(fed: Federation, request: requests.Sgd) -> requests.Trained:
    """Trains the columns of the head on features that are computed once."""
    samples, positions = request.plan.once(FEATURES_AT_ONCE)
    alone = fed.executor.do(requests.ExtractFeatures(samples, request.models, request.buffers)).executor
    try:
        head = request.models[:, fed.flat.head]
        done = alone.do(replace(request, plan=positions, models=head, buffers=request.buffers[:, :0], columns=requests.ALL))
    finally:
        alone.close()
    trained = request.models.clone()
    trained[:, fed.flat.head] = done.models
    return replace(done, models=trained, buffers=request.buffers)


def _purpose(model: str) -> str:
    """The random stream of a model's batches: each model has its own order."""
    return "batches" if model == "model" else f"batches/{model}"


def _note(fed: Federation, model: str, S: Tensor, plan: Plan, loss: Tensor, before: Tensor, after: Tensor) -> None:
    # A client too small for a single step has no training loss.
    stepped = torch.from_numpy(plan.steps() > 0).to(fed.device)
    fed.ledger.train_loss[model] = float((fed.shares(S[stepped]) * loss[stepped]).sum())
    if fed.keep_trained and model == "model":
        fed.ledger.trained = after
    if fed.followed is not None and model == "model":
        fed.ledger.follow(fed.followed, S, before, after)
