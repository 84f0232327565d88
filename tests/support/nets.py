"""A file with models as users write them."""

NETS = '''
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """A convolution, and a linear layer.

    And more."""

    def __init__(self, input_shape, classes):
        super().__init__()
        channels, height, width = input_shape
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * (height // 2) * (width // 2), classes)

    def forward(self, x):
        return self.fc(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


def layers(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
'''
