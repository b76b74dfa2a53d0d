"""FedAvg's round in PyTorch on a GPU, in several arrangements.

All clients have equally many examples, which lie on the GPU.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers import pytorch_networks
from benchmarks.workloads import Workload


class Loop:
  """One client after the other, each operation launched from Python."""

  device = 'cuda'
  compiled = False

  def __init__(self, workload: Workload, x: Any, y: Any, sizes: Any):
    if len(set(sizes)) > 1:
      raise ValueError('Clients must have equally many examples.')
    self._workload = workload
    self._size, self._count = int(sizes[0]), len(sizes)
    self._x = pytorch_networks.inputs(x).to(self.device)
    self._y = torch.from_numpy(y).to(self.device)
    self._net = pytorch_networks.network(workload).to(self.device)
    self._model = torch.compile(self._net) if self.compiled else self._net
    self._trained = pytorch_networks.trained(self._net)
    self._start = [p.detach().clone() for p in self._trained]
    self._mean = [torch.zeros_like(p) for p in self._start]
    self.start = [p.cpu().numpy() for p in self._start]
    self._loss = nn.CrossEntropyLoss()
    self._ready()

  def _ready(self) -> None:
    """Inputs that are prepared once."""

  def _step(self, rows: torch.Tensor) -> None:
    """A step of SGD on the examples of these rows."""
    loss = self._loss(self._model(self._x[rows]), self._y[rows])
    gradients = torch.autograd.grad(loss, self._trained)
    with torch.no_grad():
      torch._foreach_add_(self._trained, gradients, alpha=-self._workload.learning_rate)

  def _client(self, orders: torch.Tensor) -> None:
    """Trains a client by its orders [epochs, N] of rows, and adds it to the mean."""
    with torch.no_grad():
      torch._foreach_copy_(self._trained, self._start)
    for order in orders:
      for rows in order.split(self._workload.batch_size):
        self._step(rows)
    with torch.no_grad():
      torch._foreach_add_(self._mean, self._trained, alpha=1 / self._count)

  def _orders(self) -> torch.Tensor:
    """[M, epochs, N] rows of all clients in random order."""
    shape = (self._count, self._workload.epochs, self._size)
    first = torch.arange(self._count, device=self.device) * self._size
    order = torch.rand(shape, device=self.device).argsort(dim=-1)
    return order + first[:, None, None]

  def round(self) -> None:
    torch._foreach_zero_(self._mean)
    for orders in self._orders():
      self._client(orders)
    _wait(self.device)

  def mean(self) -> list[np.ndarray]:
    return [p.cpu().numpy() for p in self._mean]


class Compiled(Loop):
  """As `Loop`, with `torch.compile` of the network."""

  compiled = True


class Graph(Loop):
  """One client after the other, each a CUDA graph of all its steps."""

  def _ready(self) -> None:
    self._buffer = self._orders()[0].clone()
    self._graph = _captured(lambda: self._client(self._buffer))

  def round(self) -> None:
    torch._foreach_zero_(self._mean)
    for orders in self._orders():
      self._buffer.copy_(orders)
      self._graph.replay()
    _wait(self.device)


class Stacked(Loop):
  """All clients side by side, by `torch.func.vmap` of the gradient."""

  def _ready(self) -> None:
    names = [name for name, p in self._net.named_parameters() if p.requires_grad]
    rest = {n: p for n, p in self._net.named_parameters() if not p.requires_grad}
    skeleton = copy.deepcopy(self._net).to('meta')

    def loss(params: list[torch.Tensor], x: Any, y: Any) -> torch.Tensor:
      own = dict(zip(names, params, strict=True)) | rest
      return self._loss(torch.func.functional_call(skeleton, own, (x,)), y)

    self._gradient = torch.func.vmap(torch.func.grad(loss))
    self._models = [
      p.expand(self._count, *p.shape).clone(memory_format=torch.contiguous_format)
      for p in self._start
    ]
    self._buffer = self._orders()

  def _train(self, orders: torch.Tensor) -> None:
    with torch.no_grad():
      for model, start in zip(self._models, self._start, strict=True):
        model.copy_(start.expand_as(model))
      for epoch in range(self._workload.epochs):
        for rows in orders[:, epoch].split(self._workload.batch_size, dim=1):
          gradients = self._gradient(self._models, self._x[rows], self._y[rows])
          torch._foreach_add_(
            self._models, list(gradients), alpha=-self._workload.learning_rate
          )
      for mean, model in zip(self._mean, self._models, strict=True):
        mean.copy_(model.mean(dim=0))

  def round(self) -> None:
    self._train(self._orders())
    _wait(self.device)


class StackedGraph(Stacked):
  """As `Stacked`, the whole round a CUDA graph."""

  def _ready(self) -> None:
    super()._ready()
    self._graph = _captured(lambda: self._train(self._buffer))

  def round(self) -> None:
    self._buffer.copy_(self._orders())
    self._graph.replay()
    _wait(self.device)


ARRANGEMENTS: dict[str, type[Loop]] = {
  'loop, CUDA graph': Graph,
  'stacked (vmap)': Stacked,
  'stacked (vmap), CUDA graph': StackedGraph,
  'loop': Loop,
  'loop, torch.compile': Compiled,
}


def _captured(fn: Callable[[], None]) -> torch.cuda.CUDAGraph:
  side = torch.cuda.Stream()
  side.wait_stream(torch.cuda.current_stream())
  with torch.cuda.stream(side):
    for _ in range(2):  # What is set up at the first call must not be captured.
      fn()
  torch.cuda.current_stream().wait_stream(side)
  graph = torch.cuda.CUDAGraph()
  with torch.cuda.graph(graph):
    fn()
  return graph


def _wait(device: str) -> None:
  if device == 'cuda':
    torch.cuda.synchronize()


def set_precision(tf32: bool) -> None:
  """Tells if products and convolutions of float32 round their factors to TF32."""
  torch.backends.cuda.matmul.allow_tf32 = tf32
  torch.backends.cudnn.allow_tf32 = tf32
  torch.backends.cudnn.benchmark = True
