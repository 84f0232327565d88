"""A small convolutional network for 8 x 8 digits, as a model of one's own: see docs/own-model.md."""

from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self, input_shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * (height // 2) * (width // 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc(x.flatten(1))
