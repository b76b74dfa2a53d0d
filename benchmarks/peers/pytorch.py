"""PyTorch's loop over clients, one after the other, as PFLlib and FL-bench do.

Written to be fast: data in memory as tensors, shuffled by index, convolutions with
channels last, fused SGD.
"""

import itertools
import sys
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers import worker
from benchmarks.workloads import Workload


class _Unflatten(nn.Module):
  """[B, H, W] -> [B, 1, H, W]."""

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(1)


def network(workload: Workload) -> nn.Sequential:
  """The work load's network, loaded with its initial parameters."""
  relu, pool, flatten = nn.ReLU, lambda: nn.MaxPool2d(2), nn.Flatten
  classes = workload.num_classes
  if workload.network == 'femnist_cnn':
    layers = [
      _Unflatten(), nn.Conv2d(1, 32, 5, padding=2), relu(), pool(),
      nn.Conv2d(32, 64, 5, padding=2), relu(), pool(), flatten(),
      nn.Linear(3136, 2048), relu(), nn.Linear(2048, classes),
    ]  # fmt: skip
  elif workload.network == 'emnist_cnn':
    layers = [
      _Unflatten(), nn.Conv2d(1, 32, 3), relu(), nn.Conv2d(32, 64, 3), relu(), pool(),
      flatten(), nn.Linear(9216, 128), relu(), nn.Linear(128, classes),
    ]  # fmt: skip
  else:
    widths = (int(np.prod(workload.example_shape)), *workload.hidden, classes)
    layers = [flatten()]
    for a, b in itertools.pairwise(widths):
      layers += [nn.Linear(a, b), relu()]
    layers = layers[:-1]
  model = nn.Sequential(*layers)
  initial = list(workload.initial().values())
  with torch.no_grad():
    for parameter, value in zip(model.parameters(), initial, strict=True):
      parameter.copy_(_to_torch(value, parameter, workload))
  # Saves 5 to 10 % of a step's processor time on W1 and W2.
  return model.to(memory_format=torch.channels_last)


def _to_torch(value: Any, parameter: Any, workload: Workload) -> torch.Tensor:
  """[h, w, in, out] -> [out, in, h, w]; rows after pooling in channel-first order."""
  value = torch.from_numpy(value)
  if value.ndim == 4:
    return value.permute(3, 2, 0, 1)
  if value.ndim == 2 and workload.network != 'mlp' and value.shape[0] in (3136, 9216):
    side = {3136: 7, 9216: 12}[value.shape[0]]
    shape = (side, side, 64, value.shape[1])
    value = value.reshape(shape).permute(2, 0, 1, 3).reshape(-1, value.shape[1])
  return value.T if value.ndim == 2 else value


class PyTorch:
  """FedAvg's round."""

  def __init__(self, workload: Workload, x: Any, y: Any, sizes: Any):
    self._workload = workload
    self._model = network(workload)
    self._start = [p.detach().clone() for p in self._model.parameters()]
    self._mean = [p.clone() for p in self._start]
    self.start = [p.numpy() for p in self._start]
    scaled = torch.from_numpy(x).float() / 255
    ends = np.cumsum(sizes)
    self._clients = [
      (scaled[end - n : end], torch.from_numpy(y[end - n : end]))
      for n, end in zip(sizes, ends, strict=True)
    ]

  def round(self) -> None:
    total = sum(len(y) for _, y in self._clients)
    loss_fn = nn.CrossEntropyLoss()
    parameters = list(self._model.parameters())
    batch_size, rate = self._workload.batch_size, self._workload.learning_rate
    for mean in self._mean:
      mean.zero_()
    for x, y in self._clients:
      with torch.no_grad():
        torch._foreach_copy_(parameters, self._start)
      optimizer = torch.optim.SGD(parameters, lr=rate, fused=True)
      for _ in range(self._workload.epochs):
        for rows in torch.randperm(len(y)).split(batch_size):
          optimizer.zero_grad(set_to_none=True)
          loss_fn(self._model(x[rows]), y[rows]).backward()
          optimizer.step()
      with torch.no_grad():
        torch._foreach_add_(self._mean, parameters, alpha=len(y) / total)

  def mean(self) -> list[np.ndarray]:
    return [p.numpy() for p in self._mean]


if __name__ == '__main__':
  if len(sys.argv) > 1:
    torch.set_num_threads(int(sys.argv[1]))
  versions = {'torch': torch.__version__, 'python': sys.version.split()[0]}
  worker.serve(worker.Worker(PyTorch).answer, versions)
