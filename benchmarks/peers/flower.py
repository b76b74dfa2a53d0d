"""Flower's simulation engine: FedAvg over ClientApps in Ray's actors."""

import functools
import os
import queue
import sys
import threading
from importlib import metadata
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import pytorch_networks, worker
from benchmarks.workloads import WORKLOADS, Workload


@functools.cache
def _federation(name: str, path: str) -> tuple[Any, Any, list[Any]]:
  """Network, optimizer and clients' tensors of an actor, which keeps them."""
  network = pytorch_networks.network(WORKLOADS[name])
  rate = WORKLOADS[name].learning_rate
  optimizer = torch.optim.SGD(network.parameters(), lr=rate, fused=True)
  with np.load(path) as file:
    parts = file['sizes'].tolist()
    x = pytorch_networks.inputs(file['x']).split(parts)
    y = torch.from_numpy(file['y']).split(parts)
  return network, optimizer, list(zip(x, y, strict=True))


def _client_app(name: str, path: str, epochs: int) -> ClientApp:
  app = ClientApp()

  @app.train()
  def train(message: Message, context: Context) -> Message:
    from benchmarks.peers import flower  # Pickled by name, so that it caches.

    network, optimizer, clients = flower._federation(name, path)
    network.load_state_dict(message.content['arrays'].to_torch_state_dict())
    client = int(context.node_config['partition-id'])
    torch.manual_seed(client)
    x, y = clients[client]
    for _ in range(epochs):
      for rows in torch.randperm(len(y)).split(WORKLOADS[name].batch_size):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
        optimizer.step()
    content = RecordDict({
      'arrays': ArrayRecord(network.state_dict()),
      'metrics': MetricRecord({'num-examples': len(y)}),
    })  # fmt: skip
    return Message(content=content, reply_to=message)

  return app


class Flower:
  """FedAvg's round; a simulation lasts as long as the federation."""

  def __init__(self, workload: Workload, x: Any, y: Any, sizes: Any):
    path = f'/dev/shm/fesem-bench-flower-{os.getpid()}-{len(y)}.npz'
    np.savez(path, x=x, y=y, sizes=sizes)
    network = pytorch_networks.network(workload)
    self._names = [n for n, p in network.named_parameters() if p.requires_grad]
    start = self._mean = ArrayRecord(network.state_dict())
    self.start = self.mean()
    todo: queue.Queue[Any] = queue.Queue()
    done: queue.Queue[Any] = queue.Queue()
    self._todo, self._done = todo, done
    server, count = ServerApp(), len(sizes)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
      strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count
      )
      while todo.get():
        done.put(strategy.start(grid, start, num_rounds=1).arrays)
      os.unlink(path)

    # Processors of an actor, each of which has as many threads.
    resources = {'num_cpus': int(sys.argv[1]), 'num_gpus': 0.0}
    client = _client_app(workload.name, path, workload.epochs)
    config = {'client_resources': resources}
    self._thread = threading.Thread(
      target=run_simulation, args=(server, client, count, 'ray', config)
    )
    self._thread.start()

  def round(self) -> None:
    self._todo.put(True)
    self._mean = self._done.get()

  def mean(self) -> list[np.ndarray]:
    return [self._mean[name].numpy() for name in self._names]

  def __del__(self) -> None:
    self._todo.put(False)
    self._thread.join()


if __name__ == '__main__':
  from benchmarks.peers import flower

  versions = {name: metadata.version(name) for name in ('flwr', 'ray', 'torch')}
  served = worker.Worker(flower.Flower)
  worker.serve(served.answer, versions)
  served._runner = None  # Ends the simulation.
