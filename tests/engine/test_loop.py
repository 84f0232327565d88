"""The loop executor's own ways to be fast: that they change no number, and that they are taken."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pflbench.contract.small import federation, train
from pflbench.engine.flat import Flat
from pflbench.engine.loop_executor import Worker
from pflbench.methods.fedala import FedALA


@pytest.fixture
def texts():
    """Tokens 0 to 29, so that every batch has padding and repeated tokens."""
    fed = federation("fasttext", "loop", local_epochs=2)
    yield fed
    fed.executor.close()


def test_weight_learning_on_embeddings_after_training_with_sparse_gradients(texts):
    """An inner loop takes whole gradients from the workers that have trained."""
    other = federation("fasttext", "batched", local_epochs=2)
    of_loop, of_batched = (train(FedALA(p=3, max_init_epochs=2), fed, 2) for fed in (texts, other))
    torch.testing.assert_close(of_loop.ala.W, of_batched.ala.W, rtol=0, atol=1e-10)
    assert of_loop.ala.W.min() < 0.99


def test_an_embedding_gradient_holds_the_touched_rows_alone(texts):
    worker = Worker(texts.flat, texts.executor.samples, F.cross_entropy)
    worker.load(texts.initial(), torch.empty(0, dtype=torch.float64))
    parameters, index = worker.select(slice(None)), torch.tensor([3])
    worker.train(compact=True)
    _, (embedding, *others) = worker.gradients(index, parameters)
    touched = texts.executor.samples.batch(index)[0].unique()
    assert embedding.is_sparse
    assert embedding.coalesce().indices().flatten().tolist() == touched[touched > 0].tolist()
    assert not any(gradient.is_sparse for gradient in others)
    worker.train(compact=False)
    _, (dense, *_) = worker.gradients(index, parameters)
    torch.testing.assert_close(embedding.to_dense(), dense, rtol=0, atol=1e-15)


def test_an_embedding_scaled_by_frequency_keeps_dense_gradients(texts):
    """PyTorch has no sparse ones for it."""
    module = copy.deepcopy(texts.flat.module)
    module.embedding = nn.Embedding(30, 32, padding_idx=0, scale_grad_by_freq=True)
    worker = Worker(Flat(module), texts.executor.samples, F.cross_entropy)
    worker.load(texts.initial(), torch.empty(0, dtype=torch.float64))
    worker.train(compact=True)
    _, (gradient, *_) = worker.gradients(torch.tensor([3]), worker.select(slice(None)))
    assert not gradient.is_sparse
