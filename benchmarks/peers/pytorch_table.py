"""Runs of several methods in PyTorch, clients one after the other.

Logistic regression, trained by the equations that the methods of this package document,
with their default options. Written to be fast: examples in memory as tensors, shuffled
by index, fused SGD; penalties and control variates are added to the gradients of all
parameters at once. `benchmarks.comparison` deals the runs to one process for each core.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers import worker

Model = list[torch.Tensor]  # weights and bias
Clients = list[tuple[torch.Tensor, torch.Tensor]]  # x and y of each

_LOSS = nn.CrossEntropyLoss()


class Run:
  """A method on one federation, before its first round.

  Attributes:
    steps: SGD steps so far, of all clients, without those of a start.
  """

  def __init__(self, train: Clients, classes: int, batch: int, rate: float, seed: int):
    torch.manual_seed(seed)
    self.train, self.rate, self.steps = train, rate, 0
    self._batch, self._classes = batch, classes
    self._net = nn.Linear(train[0][0].shape[1], classes)
    self._parameters = list(self._net.parameters())
    self._optimizer = torch.optim.SGD(self._parameters, lr=rate, fused=True)
    sizes = torch.tensor([float(len(y)) for _, y in train])
    self.shares = (sizes / sizes.sum()).tolist()
    self.first = self.new()

  def new(self) -> Model:
    """A random model."""
    self._net.reset_parameters()
    return self._copy()

  def _copy(self) -> Model:
    return [p.detach().clone() for p in self._parameters]

  def sgd(
    self, client: int, start: Model, change: Callable[[Model], None] | None = None
  ) -> Model:
    """A local epoch; `change` adds to the gradients, in place."""
    x, y = self.train[client]
    with torch.no_grad():
      torch._foreach_copy_(self._parameters, start)
    for rows in torch.randperm(len(y)).split(self._batch):
      self._optimizer.zero_grad(set_to_none=True)
      _LOSS(self._net(x[rows]), y[rows]).backward()
      if change is not None:
        with torch.no_grad():
          change([p.grad for p in self._parameters])
      self._optimizer.step()
      self.steps += 1
    return self._copy()

  def toward(self, center: Model, weight: float) -> Callable[[Model], None]:
    """Adds the gradient of weight / 2 |w - center|^2."""

    def change(gradients: Model) -> None:
      torch._foreach_add_(gradients, self._parameters, alpha=weight)
      torch._foreach_add_(gradients, center, alpha=-weight)

    return change

  def loss(self, model: Model, client: int) -> float:
    """Mean loss of a client's training examples."""
    x, y = self.train[client]
    with torch.no_grad():
      return float(_LOSS(nn.functional.linear(x, *model), y))


def mean(models: list[Model], weights: list[float]) -> Model:
  """The weighted mean of models."""
  total = [torch.zeros_like(p) for p in models[0]]
  for model, weight in zip(models, weights, strict=True):
    torch._foreach_add_(total, model, alpha=weight / sum(weights))
  return total


def fed_avg(run: Run, rounds: int) -> list[Model]:
  """The model of each client after so many rounds of FedAvg."""
  return _averaged(run, rounds, prox=0.0)


def fed_prox(run: Run, rounds: int) -> list[Model]:
  """The same of FedProx."""
  return _averaged(run, rounds, prox=0.1)


def _averaged(run: Run, rounds: int, prox: float) -> list[Model]:
  model = run.first
  for _ in range(rounds):
    change = run.toward(model, prox) if prox else None
    trained = [run.sgd(i, model, change) for i in range(len(run.train))]
    model = mean(trained, run.shares)
  return [model] * len(run.train)


def scaffold(run: Run, rounds: int) -> list[Model]:
  """The same of SCAFFOLD."""
  model, count = run.first, len(run.train)
  control = [torch.zeros_like(p) for p in model]
  own = [[torch.zeros_like(p) for p in model] for _ in run.train]
  for _ in range(rounds):
    trained, controls = [], []
    for i in range(count):
      added, before = torch._foreach_sub(control, own[i]), run.steps

      def change(gradients: Model, added: Model = added) -> None:
        torch._foreach_add_(gradients, added)

      local_model = run.sgd(i, model, change)
      new = torch._foreach_sub(own[i], control)
      length = (run.steps - before) * run.rate
      torch._foreach_add_(new, torch._foreach_sub(model, local_model), alpha=1 / length)
      trained.append(local_model)
      controls.append(new)
    moved = [mean(each, [1.0] * count) for each in (controls, own)]
    control = torch._foreach_add(control, torch._foreach_sub(*moved))
    model, own = mean(trained, [1.0] * count), controls
  return [model] * count


def ditto(run: Run, rounds: int) -> list[Model]:
  """The same of Ditto."""
  model, own = run.first, [run.first] * len(run.train)
  for _ in range(rounds):
    trained = [run.sgd(i, model) for i in range(len(run.train))]
    pull = run.toward(model, 0.1)
    own = [run.sgd(i, start, pull) for i, start in enumerate(own)]
    model = mean(trained, run.shares)
  return own


def fesem(run: Run, rounds: int) -> list[Model]:
  """The same of FeSEM with four clusters."""
  local = [run.sgd(i, run.first) for i in range(len(run.train))]
  centers = _k_means(torch.stack([_flat(m) for m in local]), restarts=20)
  run.steps = 0  # Those of the start do not count.
  chosen = [int(torch.cdist(_flat(m)[None], centers).argmin()) for m in local]
  models = [_unflat(c, run.first) for c in centers]
  for _ in range(rounds):
    local = [
      run.sgd(i, models[k], run.toward(models[k], 0.02)) for i, k in enumerate(chosen)
    ]
    flat = torch.stack([_flat(m) for m in local])
    chosen = torch.cdist(flat, torch.stack([_flat(m) for m in models])).argmin(1)
    chosen = chosen.tolist()
    models = _of_clusters(models, local, chosen)
  return [models[k] for k in chosen]


def hypo_cluster(run: Run, rounds: int) -> list[Model]:
  """The same of HypoCluster (IFCA) with four clusters and one draw of centers."""
  models = [run.new() for _ in range(4)]
  for _ in range(rounds):
    chosen = _of_least_loss(run, models)
    trained = [run.sgd(i, models[k]) for i, k in enumerate(chosen)]
    models = _of_clusters(models, trained, chosen)
  return [models[k] for k in _of_least_loss(run, models)]


def _of_least_loss(run: Run, models: list[Model]) -> list[int]:
  losses = [[run.loss(m, i) for m in models] for i in range(len(run.train))]
  return np.argmin(losses, axis=1).tolist()


def _of_clusters(old: list[Model], models: list[Model], chosen: list[int]):
  """The mean of the clients of each center, or the old one without any."""
  new = []
  for k, center in enumerate(old):
    of_center = [m for m, c in zip(models, chosen, strict=True) if c == k]
    new.append(mean(of_center, [1.0] * len(of_center)) if of_center else center)
  return new


def _flat(model: Model) -> torch.Tensor:
  return torch.cat([p.ravel() for p in model])


def _unflat(flat: torch.Tensor, like: Model) -> Model:
  parts = flat.split([p.numel() for p in like])
  return [part.view_as(p) for part, p in zip(parts, like, strict=True)]


def _k_means(points: torch.Tensor, restarts: int) -> torch.Tensor:
  """Four centers of least squared distances of several restarts."""
  best, least = points[:4], float('inf')
  for _ in range(restarts):
    centers, before = points[torch.randperm(len(points))[:4]], None
    while True:
      distances = torch.cdist(points, centers)
      nearest = distances.argmin(1)
      if before is not None and torch.equal(nearest, before):
        break
      before = nearest
      centers = torch.stack(
        [
          points[nearest == k].mean(0) if (nearest == k).any() else centers[k]
          for k in range(4)
        ]
      )
    if (total := float(distances.min(1).values.square().sum())) < least:
      best, least = centers, total
  return best


METHODS = {f.__name__: f for f in (
  fed_avg, fed_prox, scaffold, ditto, fesem, hypo_cluster,
)}  # fmt: skip


def answer(command: dict[str, Any]) -> dict[str, Any]:
  """Trains runs [method, rate, number of the data]: accuracies and steps of each.

  The command also has `file`, of arrays `NUMBER/train/x`, `.../y` and `.../sizes`, and
  of `test`; the classes, the rounds and the batch size.
  """
  held, done = np.load(command['file']), []
  for name, rate, number in command['runs']:
    train, test = (_clients(held, f'{number}/{split}') for split in ('train', 'test'))
    run = Run(train, command['classes'], command['batch_size'], rate, number)
    models, right = METHODS[name](run, command['rounds']), 0
    for model, (x, y) in zip(models, test, strict=True):
      right += int((nn.functional.linear(x, *model).argmax(1) == y).sum())
    done.append([right / sum(len(y) for _, y in test), run.steps])
  return {'done': done}


def _clients(held: Any, name: str) -> Clients:
  x, y, sizes = (held[f'{name}/{part}'] for part in ('x', 'y', 'sizes'))
  tensors = torch.from_numpy(x), torch.from_numpy(y)
  return list(zip(*(t.split(sizes.tolist()) for t in tensors), strict=True))


if __name__ == '__main__':
  torch.set_num_threads(1)
  worker.serve(answer, {'torch': torch.__version__, 'python': sys.version.split()[0]})
