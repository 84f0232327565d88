"""Which samples a client sees, in which order (methods.md 0.1, 0.5, 1.14): the plans that all batches come from."""

from __future__ import annotations

from typing import Any

import pytest

from pflbench.contract.small import federation
from pflbench.engine.batches import Plan
from pflbench.engine.federation import Federation

EPOCHS = 4


@pytest.mark.parametrize(
    ("drop_last", "n", "sizes"),
    [
        ("auto", 13, [5, 5]),
        ("never", 13, [5, 5, 3]),
        ("auto", 4, [4]),
        ("always", 4, []),
        ("auto", 10, [5, 5]),
    ],
)
def test_every_epoch_is_another_permutation_of_the_client_s_samples_without_its_tail(
    drop_last: str, n: int, sizes: list[int]
) -> None:
    """Batches of 5. The whole permutations are those of the same streams where nothing is dropped."""
    now, whole = (federation(n=(n, 21), drop_last=d).at(3) for d in (drop_last, "never"))
    S = now.all_trainable()[:1]
    epochs, kept = whole.batches(S, EPOCHS).order[0].reshape(EPOCHS, n), sum(sizes)
    assert all(sorted(epoch) == sorted(now.train_indices[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == EPOCHS
    assert not any((epoch == now.train_indices[0]).all() for epoch in epochs)
    plan = now.batches(S, EPOCHS)
    assert plan.sizes[0].tolist() == sizes * EPOCHS
    assert plan.order[0].reshape(EPOCHS, kept).tolist() == epochs[:, :kept].tolist(), "what is dropped is the tail"
    assert [len(batch) for batch in plan.batches(0)] == sizes * EPOCHS


def test_the_order_changes_with_round_client_seed_and_purpose_alone() -> None:
    def order(t: int = 1, seed: int = 0, purpose: str = "batches") -> tuple[int, ...]:
        fed = federation(n=(20, 20), seed=seed).at(t)
        first, second = fed.batches(fed.all_trainable(), 1, purpose=purpose).order
        assert tuple(first) != tuple(second - second.min())
        return tuple(first)

    assert order() == order()
    assert len({order(), order(t=2), order(seed=1), order(purpose="batches/head")}) == 4


def test_unshuffled_epochs_are_the_given_order() -> None:
    """ALA's: only then can the losses of the last batch be compared between epochs."""
    fed = federation(n=(20,))
    mine = fed.train_indices[0][[3, 1, 4, 15, 9, 2, 6]]
    plan = fed.batches(fed.all_trainable(), 2, samples=[mine], shuffle=False, drop_last="never")
    assert plan.order[0].tolist() == [*mine, *mine]
    assert plan.sizes[0].tolist() == [5, 2, 5, 2]


@pytest.mark.parametrize("verb", ["fit", "train_by"])
def test_a_plan_for_nobody_is_a_plan(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation()
    nobody = fed.all_trainable()[:0]
    rows, plan = fed.rows(fed.initial(), nobody), Plan((), ())
    how: dict[str, Any] = {"step": lambda grad, w: {"w": w - grad(w)}, "carry": {"w": rows}} if verb == "train_by" else {}

    def other(*_: Any, **__: Any) -> Plan:
        raise AssertionError("another plan was made")

    monkeypatch.setattr(Federation, "batches", other)
    getattr(fed, verb)(rows=rows, S=nobody, plan=plan, **how)
