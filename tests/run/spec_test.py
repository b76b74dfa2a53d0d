"""Arguments of `simulate`, as a `Spec` holds them."""

import dataclasses

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.data import Phase
from fesem_jax.run import ending
from fesem_jax.run.spec import spec_of
from tests.support import helpers
from tests.support.runs import built, federation


def fesem():
  return built('fesem', hidden=())


def asked(**options):
  train, test = federation()
  of_run = {'algorithm': fesem(), 'train': train, 'test': test, 'rounds': 2}
  return of_run | options


def test_a_workdir_is_a_path_or_has_options(tmp_path):
  folder = fj.Workdir(str(tmp_path), 3, resume=False, save_models=True, portrait=False)
  spec = spec_of(**asked(workdir=folder))
  assert (spec.workdir, spec.checkpoint_every, spec.resume) == (tmp_path, 3, False)
  assert (spec.save_models, spec.make_portrait) == (True, False)
  assert spec_of(**asked(workdir=tmp_path)).workdir == tmp_path


def test_a_portrait_is_drawn_when_it_is_asked_for(monkeypatch):
  """Without a workdir nothing is computed for figures before."""
  draw, drawn = ending._portrait, []
  monkeypatch.setattr(ending, '_portrait', lambda *a: drawn.append(1) or draw(*a))
  result = fj.simulate(**asked(rounds=1))
  assert drawn == []
  np.testing.assert_array_equal(result.portrait['names'], result.clients['client'])
  assert result.portrait is result.portrait
  assert drawn == [1]


def test_results_of_attacks_are_shown_for_honest_clients():
  result = fj.simulate(**asked(rounds=1, finetune_epochs=0))
  honest = {'deployed': {'micro_accuracy': 0.75}, 'finetuned': {'micro_accuracy': 1.0}}
  attacked = dataclasses.replace(result, summary=result.summary | {'honest': honest})
  _, metrics, _ = repr(attacked).splitlines()
  assert 'deployed micro-accuracy 75.0%' in metrics


class Misspelled(fj.Callback):
  def on_epoch_end(self, event):
    raise AssertionError('It is never called.')


TRAIN, TEST = federation()
EMPTY = helpers.federation([3, 0, 2]), helpers.federation([1, 1, 1])


@pytest.mark.parametrize(
  ('options', 'name'),
  [
    ({'patience': 0.5}, 'patience'),
    ({'test': TEST.reorder(np.arange(7)[::-1])}, 'train and test'),
    (dict(zip(('train', 'test'), EMPTY, strict=True)), 'train'),
    ({'callbacks': [lambda: None]}, 'callbacks'),
    ({'callbacks': [Misspelled()]}, 'callbacks'),
    ({'later_phases': [Phase(1, TRAIN, TEST)]}, 'later_phases'),
    ({'later_phases': [Phase(3, TEST, TEST)]}, 'later_phases'),
    ({'test': None}, 'test'),
    ({'algorithm': fj.algorithms.fesem}, 'algorithm'),
    ({'rounds': 2.5}, 'rounds'),
    ({'seed': -1}, 'seed'),
    ({'clients_per_round': 8}, 'clients_per_round'),
    ({'clients_per_round': 1.0}, 'clients_per_round'),
    ({'eval_every': 0.5}, 'eval_every'),
    ({'finetune_epochs': -1}, 'finetune_epochs'),
    ({'unseen': (None, None)}, 'unseen'),
    ({'workdir': fj.Workdir('run', -1)}, 'checkpoint_every'),
  ],
)
def test_wrong_arguments_are_named(options, name):
  with pytest.raises(fj.UserError, match=f'^{name}: '):
    fj.simulate(**asked(**options))
