"""fastText (Joulin et al., EACL 2017), as FedALA uses it (methods.md 4.2)."""

from __future__ import annotations

from torch import Tensor, nn

from pflbench.models.base import Backbone


class FastText(Backbone):
    """Mean of the 32-dimensional embeddings, `hidden` without activation, `output`."""

    head = "output"
    blocks = (("output",), ("hidden",), ("embedding",))
    lookup = "embedding"

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32, padding_idx=0)
        self.hidden = nn.Linear(32, 32)
        self.output = nn.Linear(32, classes)

    def features(self, x: Tensor) -> Tensor:
        """x: token indices [batch, positions]. The mean runs over all positions, padding included."""
        features: Tensor = self.hidden(self.embedding(x).mean(1))
        return features
