"""The attention of FedAMP and HeurFedAMP (methods.md 1.9) where numbers are very close, very large or zero."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from support.twins import close, clouds, near

from pflbench.methods.attention import AT_ONCE, cosines, distances, mixed, squared_distances
from pflbench.methods.fedamp import FedAMP
from pflbench.methods.heurfedamp import HeurFedAMP


def test_distances_of_close_models_keep_their_digits():
    """Single-precision models of size 10^2 that differ in the last digits, against exact rational numbers."""
    w = 100 + torch.randn(4, 30, generator=torch.Generator().manual_seed(9)) * 1e-5
    exact = [[sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x, y, strict=True)) for y in w.tolist()] for x in w.tolist()]
    torch.testing.assert_close(
        squared_distances(w), torch.tensor([[float(d) for d in row] for row in exact], dtype=torch.float64)
    )
    assert 0 < exact[0][1] < 1e-6


def test_clouds_of_close_models_keep_their_digits():
    """xi_ii near -3 * 10^4: written as sum_j xi_ij w_j in single precision, the result would be noise."""
    w = 1 + torch.randn(4, 50, generator=torch.Generator().manual_seed(9)) * 1e-3
    others = FedAMP().attention(w, 1)
    assert others[0].sum() > 2.9e4
    exact = [[Fraction(v) for v in row] for row in w.tolist()]
    xi = [[Fraction(v) for v in row] for row in others.tolist()]
    u = [[exact[i][k] + sum(xi[i][j] * (exact[j][k] - exact[i][k]) for j in range(4)) for k in range(50)] for i in range(4)]
    expected = torch.tensor([[float(v) for v in row] for row in u])
    torch.testing.assert_close(clouds(FedAMP(), w), expected, rtol=1e-6, atol=1e-6)
    plain = others.float() @ w + (1 - others.float().sum(1, keepdim=True)) * w
    assert (plain - expected).abs().max() > 1e-3


def test_columns_are_taken_in_pieces():
    """Models longer than what is computed at once, the last piece shorter: against SciPy and NumPy on whole rows."""
    w, v = torch.randn(2, 4, AT_ONCE // 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    others = torch.rand(4, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64).fill_diagonal_(0)
    theirs, own, xi = w.numpy(), v.numpy(), others.numpy()
    assert np.allclose(distances(w, v[:3]), cdist(theirs, own[:3]), rtol=1e-12, atol=0)
    assert np.allclose(squared_distances(w), cdist(theirs, theirs, "sqeuclidean"), rtol=1e-12, atol=0)
    assert np.allclose(cosines(w), 1 - cdist(theirs, theirs, "cosine"), rtol=0, atol=1e-12)
    assert np.allclose(mixed(v, w, others), own + xi @ theirs - xi.sum(1, keepdims=True) * own, rtol=0, atol=1e-12)


def test_exponents_beyond_single_precision():
    w = torch.tensor([[1.0, 0.0], [1.0, 1e-4], [-1.0, 0.0], [0.0, 0.0]])
    xi = HeurFedAMP(sigma=1e4, xi_ii=0.25).attention(w, 1)
    assert xi.isfinite().all()
    near(xi.sum(1), [0.75] * 4, 1e-12)
    near(xi[0], [0, 0.75, 0, 0], 1e-12)
    assert clouds(HeurFedAMP(sigma=1e4), w).isfinite().all()
    far = torch.tensor([[1e25, 0.0], [-1e25, 0.0], [1e25, 1.0]])
    assert squared_distances(far)[0, 1] == pytest.approx(4e50, rel=1e-6)
    apart = torch.tensor([[1e5, 0.0], [-1e5, 0.0], [1e5, 1.0]])
    assert FedAMP().attention(apart, 1)[0].tolist() == [0, 0, pytest.approx(1e4 * math.exp(-10), rel=1e-4)]
    assert torch.equal(clouds(FedAMP(), far)[1], far[1])


def test_the_zero_vector_has_cosine_zero():
    w = torch.tensor([[0.0, 0.0], [3.0, 4.0], [4.0, -3.0], [6.0, 8.0]], dtype=torch.float64)
    close(cosines(w)[[0, 0, 1, 1], [0, 1, 2, 3]], torch.tensor([0.0, 0, 0, 1], dtype=torch.float64))
    near(HeurFedAMP(xi_ii=0.1).attention(w, 1)[0], [0, 0.3, 0.3, 0.3], 1e-12)


def test_equal_models_are_at_no_distance():
    w = torch.randn(3, 1000, generator=torch.Generator().manual_seed(7))
    assert torch.equal(distances(w, w) == 0, torch.eye(3, dtype=torch.bool))
