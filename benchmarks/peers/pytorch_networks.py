"""The networks of the work loads in PyTorch, written to be fast."""

import itertools
import math
from typing import Any

import torch
from torch import nn

from benchmarks.workloads import Workload


class _Unflatten(nn.Module):
  """[B, H, W] -> [B, 1, H, W]."""

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(1)


def _conv_norm(size_in: int, size_out: int, strides: int) -> list[nn.Module]:
  return [
    nn.Conv2d(size_in, size_out, 3, strides, padding=1, bias=False),
    nn.GroupNorm(2, size_out),
  ]


class _Block(nn.Module):
  """Two convolutions with norms beside a shortcut without parameters."""

  def __init__(self, size_in: int, size_out: int, strides: int):
    super().__init__()
    self.body = nn.Sequential(
      *_conv_norm(size_in, size_out, strides),
      nn.ReLU(),
      *_conv_norm(size_out, size_out, 1),
    )
    self._strides, self._added = strides, size_out - size_in

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    y = self.body(x)
    if self._added:
      half = self._added // 2
      x = x[:, :, :: self._strides, :: self._strides]
      x = nn.functional.pad(x, (0, 0, 0, 0, half, self._added - half))
    return torch.relu(y + x)


class _ChannelsFirst(nn.Module):
  """[B, H, W, C] -> [B, C, H, W], a view in channels-last memory."""

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2)


class _Mean(nn.Module):
  """[B, C, H, W] -> [B, C]."""

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return x.mean(dim=(2, 3))


class _Lstm(nn.Module):
  """Embedding, stacked LSTM, logits of the last state.

  PyTorch's second bias of each layer would double the step of their sum; it stays zero.
  """

  def __init__(self, classes: int):
    super().__init__()
    self.embedding = nn.Embedding(classes, 8)
    self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
    self.logits = nn.Linear(256, classes)
    for name, parameter in self.lstm.named_parameters():
      if name.startswith('bias_hh'):
        parameter.requires_grad_(False).zero_()

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    states, _ = self.lstm(self.embedding(x))
    return self.logits(states[:, -1])


def trained(model: nn.Module) -> list[nn.Parameter]:
  """Parameters that train, in the order of `Workload.initial`."""
  return [p for p in model.parameters() if p.requires_grad]


def inputs(x: Any) -> torch.Tensor:
  """A work load's examples: pixels in [0, 1], or tokens."""
  tensor = torch.from_numpy(x)
  return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor.long()


def network(workload: Workload) -> nn.Module:
  """The work load's network, loaded with its initial parameters."""
  model = _built(workload)
  with torch.no_grad():
    initial = workload.initial()
    for parameter, name in zip(trained(model), initial, strict=True):
      parameter.copy_(_to_torch(name, initial[name]))
  # Saves 5 to 10 % of a step's processor time on W1 and W2.
  return model.to(memory_format=torch.channels_last)


def _built(workload: Workload) -> nn.Module:
  relu, pool, flatten = nn.ReLU, lambda: nn.MaxPool2d(2), nn.Flatten
  classes = workload.num_classes
  if workload.network == 'lstm':
    return _Lstm(classes)
  if workload.network == 'resnet8':
    return nn.Sequential(
      _ChannelsFirst(), *_conv_norm(3, 16, 1), relu(), _Block(16, 16, 1),
      _Block(16, 32, 2), _Block(32, 64, 2), _Mean(), nn.Linear(64, classes),
    )  # fmt: skip
  if workload.network == 'femnist_cnn':
    return nn.Sequential(
      _Unflatten(), nn.Conv2d(1, 32, 5, padding=2), relu(), pool(),
      nn.Conv2d(32, 64, 5, padding=2), relu(), pool(), flatten(),
      nn.Linear(3136, 2048), relu(), nn.Linear(2048, classes),
    )  # fmt: skip
  if workload.network == 'emnist_cnn':
    side, *rest = workload.example_shape[1:]
    return nn.Sequential(
      _ChannelsFirst() if rest else _Unflatten(), nn.Conv2d(*rest or [1], 32, 3),
      relu(), nn.Conv2d(32, 64, 3), relu(), pool(), flatten(),
      nn.Linear(64 * (side // 2 - 2) ** 2, 128), relu(), nn.Linear(128, classes),
    )  # fmt: skip
  if workload.network == 'lenet5':
    return nn.Sequential(
      _ChannelsFirst(), nn.Conv2d(3, 6, 5), relu(), pool(), nn.Conv2d(6, 16, 5),
      relu(), pool(), flatten(), nn.Linear(400, 120), relu(), nn.Linear(120, 84),
      relu(), nn.Linear(84, classes),
    )  # fmt: skip
  layers: list[nn.Module] = [flatten()]
  widths = (math.prod(workload.example_shape), *workload.hidden, classes)
  for a, b in itertools.pairwise(widths):
    layers += [nn.Linear(a, b), relu()]
  return nn.Sequential(*layers[:-1])


def _to_torch(name: str, value: Any) -> torch.Tensor:
  """[h, w, in, out] -> [out, in, h, w]; rows after pooling in channel-first order."""
  value = torch.from_numpy(value)
  if value.ndim == 4:
    return value.permute(3, 2, 0, 1)
  rows = value.shape[0]
  # Behind two convolutions: their channels.
  if channels := {400: 16, 3136: 64, 9216: 64, 12544: 64}.get(rows):
    side = math.isqrt(rows // channels)
    shape = (side, side, channels, value.shape[1])
    value = value.reshape(shape).permute(2, 0, 1, 3).reshape(-1, value.shape[1])
  # A table of vectors is laid out alike; a kernel is turned.
  return value.T if value.ndim == 2 and 'embedding' not in name else value
