"""The LSTM for the next character of Shakespeare's plays (McMahan et al., AISTATS 2017; LEAF; methods.md 4.6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflbench.models.base import Backbone


class LSTMLayer(nn.Module):
    """What nn.LSTM computes, with one bias instead of two; in matrix products, since `vmap` has no rule for nn.LSTM."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)  # as nn.LSTM

    def forward(self, x: Tensor) -> Tensor:
        """[batch, positions, inputs] -> the state after each position, [batch, positions, hidden]."""
        state = cell = x.new_zeros(len(x), self.hidden)
        states = []
        for given in self.input(x).unbind(1):
            i, f, g, o = (given + self.recurrent(state)).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, 1)


class CharLSTM(Backbone):
    """Embedding of 8 numbers, two LSTM layers of 256 units, `output` on the last state."""

    head = "output"
    blocks = (("output",), ("lstm_2",), ("lstm_1",), ("embedding",))

    def __init__(self, vocabulary: int, classes: int, width: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm_1 = LSTMLayer(width, hidden)
        self.lstm_2 = LSTMLayer(hidden, hidden)
        self.output = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """x: token indices [batch, positions]."""
        states: Tensor = self.lstm_2(self.lstm_1(self.embedding(x)))
        return states[:, -1]
