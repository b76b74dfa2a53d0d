"""BlazeFL's FedAvg: clients in turn, in a pool of threads or of processes."""

import pathlib
import shutil
import sys
import tempfile
from importlib import metadata
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from blazefl import contrib
from blazefl.core import IPCMode, ModelSelector, PartitionedDataset, serialize_model
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.peers import pytorch_networks, worker
from benchmarks.workloads import WORKLOADS, Workload


class _Selector(ModelSelector):
  """The network of a work load, by its name; BlazeFL views its parameters flat."""

  def select_model(self, model_name: Any) -> torch.nn.Module:
    network = pytorch_networks.network(WORKLOADS[model_name])
    return network.to(memory_format=torch.contiguous_format)


class _Clients(PartitionedDataset):
  """Clients' tensors in memory, which a loader reads a batch at a time."""

  def __init__(self, x: torch.Tensor, y: torch.Tensor, sizes: list[int]):
    self._data = list(zip(x.split(sizes), y.split(sizes), strict=True))

  def get_dataset(self, type_: Any, cid: Any) -> Any:
    return TensorDataset(*self._data[cid])

  def set_dataset(self, type_: Any, cid: Any, dataset: Any) -> None:
    pass

  def get_dataloader(
    self, type_: Any, cid: Any, batch_size: Any, generator: Any
  ) -> Any:
    data = self.get_dataset(type_, cid)
    order = RandomSampler(data, generator=generator)
    batches = BatchSampler(order, batch_size, drop_last=False)
    return DataLoader(data, sampler=batches, batch_size=None, generator=generator)


class BlazeFL:
  """FedAvg's round, as the library's server and clients run it."""

  def __init__(self, workload: Workload, x: Any, y: Any, sizes: Any):
    kind, count = sys.argv[1], int(sys.argv[2])
    clients = _Clients(pytorch_networks.inputs(x), torch.from_numpy(y), sizes.tolist())
    common: dict[str, Any] = {
      'model_selector': _Selector(),
      'model_name': workload.name,
      'dataset': clients,
      'num_clients': len(sizes),
      'device': 'cpu',
      'batch_size': workload.batch_size,
      'seed': 0,
    }
    self._server = contrib.FedAvgBaseServerHandler(
      **common, global_round=2**31, sample_ratio=1.0
    )
    common |= {'epochs': workload.epochs, 'lr': workload.learning_rate}
    self._folder = pathlib.Path(tempfile.mkdtemp(dir='/dev/shm'))
    if kind == 'serial':
      self._trainer: Any = contrib.FedAvgBaseClientTrainer(**common)
    elif kind == 'threads':
      self._trainer = contrib.FedAvgThreadPoolClientTrainer(
        **common, num_parallels=count
      )
    else:
      self._trainer = contrib.FedAvgProcessPoolClientTrainer(
        **common,
        num_parallels=count,
        share_dir=self._folder,
        state_dir=self._folder,
        ipc_mode=IPCMode.SHARED_MEMORY,
      )
    self._network = self._server.model
    self._trained = pytorch_networks.trained(self._network)
    self._start = serialize_model(self._network).clone()
    self.start = [value.copy() for value in self.mean()]

  def round(self) -> None:
    package = contrib.fedavg.FedAvgDownlinkPackage(self._start.clone())
    self._trainer.local_process(package, self._server.sample_clients())
    for sent in self._trainer.uplink_package():
      self._server.load(sent)

  def mean(self) -> list[np.ndarray]:
    return [p.detach().numpy() for p in self._trained]

  def __del__(self) -> None:
    shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == '__main__':
  if sys.argv[1] != 'serial':
    torch.set_num_threads(1)
  torch.multiprocessing.set_start_method(sys.argv[3] if len(sys.argv) > 3 else 'fork')
  versions = {name: metadata.version(name) for name in ('blazefl', 'torch')}
  worker.serve(worker.Worker(BlazeFL).answer, versions)
