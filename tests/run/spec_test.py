"""What `simulate` takes: options among the callbacks, `Workdir`, and old names."""

import dataclasses
import functools
import inspect
import warnings

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.data import Phase
from fesem_jax.run import one_run, simulation
from fesem_jax.run.spec import spec_of
from tests.support import helpers
from tests.support.runs import built, federation


def fesem():
  return built('fesem', hidden=())


def asked(**options):
  train, test = federation()
  of_run = {'algorithm': fesem(), 'train': train, 'test': test, 'rounds': 2}
  return of_run | options


def test_options_are_values_of_the_callbacks_and_of_the_workdir(tmp_path):
  train, test = federation()
  watch, later = fj.Callback(), [Phase(2, train, test)]
  options = [
    fj.callbacks.Patience(5), watch, fj.callbacks.Progress(False),
    fj.callbacks.Unseen(test, train), fj.callbacks.Drift(later),
  ]  # fmt: skip
  folder = fj.Workdir(str(tmp_path), 3, resume=False, save_models=True, portrait=False)
  spec = spec_of(**asked(callbacks=options, workdir=folder))
  assert spec.callbacks == [watch]
  assert (spec.patience, spec.progress, spec.unseen) == (5, False, (test, train))
  assert list(spec.later_phases) == later
  assert (spec.workdir, spec.checkpoint_every, spec.resume) == (tmp_path, 3, False)
  assert (spec.save_models, spec.make_portrait) == (True, False)
  assert spec_of(**asked(workdir=tmp_path)).workdir == tmp_path
  plain = spec_of(**asked())
  assert (plain.workdir, plain.patience, plain.progress) == (None, 0, None)
  with pytest.raises(fj.UserError, match='`callbacks` has two Patience; leave out one'):
    spec_of(**asked(callbacks=[fj.callbacks.Patience(5), fj.callbacks.Patience(6)]))
  with pytest.raises(fj.UserError, match='`patience=0` must be at least 1'):
    fj.callbacks.Patience(0)
  with pytest.raises(fj.UserError, match='`workdir` is 3; give a path or'):
    spec_of(**asked(workdir=3))


def test_the_placement_of_data_is_of_the_machine():
  local = fj.local_training(
    helpers.local().model,
    helpers.local().optimizer,
    machine=fj.Machine(data_placement='sharded'),
  )
  algorithm = fj.algorithms.build('fed_avg', local)
  assert spec_of(**asked(algorithm=algorithm)).data_placement == 'sharded'
  with pytest.raises(fj.UserError, match='`data_placement=split` is unknown'):
    fj.local_training(
      local.model, local.optimizer, machine=fj.Machine(data_placement='split')
    )


def test_old_names_work_and_say_what_is_given_in_their_place(monkeypatch, tmp_path):
  seen = []
  monkeypatch.setattr(simulation, 'run_one', seen.append)
  train, test = federation()
  old = {
    'patience': 3, 'progress': False, 'unseen': (train, test), 'checkpoint_every': 7,
    'later_phases': [Phase(2, train, test)], 'save_models': True, 'resume': False,
    'make_portrait': False, 'data_placement': 'replicated', 'config': {'a': 1},
    'notes': ['b'], 'programs': None,
  }  # fmt: skip
  assert set(old) == set(simulation._NOW)
  with pytest.warns(DeprecationWarning, match=r'patience: callbacks=\[fj') as caught:
    fj.simulate(fesem(), train, test, rounds=2, workdir=tmp_path, **old)
  assert caught[0].filename == __file__
  (spec,) = seen
  for name in set(old) - {'config', 'notes', 'programs', 'later_phases'}:
    assert getattr(spec, name) == old[name], name
  assert [phase.first_round for phase in spec.later_phases] == [2]
  monkeypatch.setattr(simulation, 'run_many', lambda specs, **_: specs)
  with pytest.warns(DeprecationWarning, match='checkpoint_every: workdir=fj.Workdir'):
    (one,) = fj.simulate_many(
      [asked(checkpoint_every=4, workdir=tmp_path)], patience=2, rounds=1
    )
  assert (one.checkpoint_every, one.patience, one.rounds) == (4, 2, 2)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    fj.simulate(**asked())
  with pytest.raises(TypeError, match='number_of_rounds'):
    fj.simulate(**asked(), number_of_rounds=3)


def test_a_portrait_is_drawn_when_it_is_asked_for(monkeypatch):
  """Without a workdir nothing is computed for figures before."""
  draw, drawn = one_run.finish.__globals__['_portrait'], []
  monkeypatch.setitem(
    one_run.finish.__globals__, '_portrait', lambda *a: drawn.append(1) or draw(*a)
  )
  result = fj.simulate(**asked(rounds=1))
  assert drawn == []
  np.testing.assert_array_equal(result.portrait['names'], result.clients.names)
  assert result.portrait is result.portrait
  assert drawn == [1]


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'test': None}, '`test` is None, not a FederatedData; give one of the two'),
    ({'train': [1]}, '`train` is a list, not a FederatedData'),
    ({'algorithm': fj.algorithms.fesem}, '`algorithm` is a function, not an Algorithm'),
    ({'rounds': 2.5}, '`rounds=2.5` must be a whole number'),
    ({'rounds': '2'}, '`rounds=2` must be a whole number'),
    ({'seed': 'x'}, '`seed=x` must be a whole number'),
    ({'eval_every': 0.5}, '`eval_every=0.5` must be a whole number'),
    ({'callbacks': [fj.callbacks.Unseen(None, None)]}, '`callbacks.Unseen` is None'),
    ({'callbacks': [fj.callbacks.Drift([3])]}, '`callbacks.Drift` takes phases'),
    ({'workdir': fj.Workdir('run', -1)}, '`checkpoint_every=-1` must be at least 0'),
  ],
)  # fmt: skip
def test_a_wrong_argument_is_one_sentence(options, message):
  with pytest.raises(fj.UserError, match=message):
    fj.simulate(**asked(**options))


@pytest.mark.parametrize(
  'fn', [fj.train_cohort, functools.partial(fj.for_each_client, None)]
)
def test_training_of_a_cohort_needs_local_training(fn):
  with pytest.raises(fj.UserError, match='`local` is a str, not a LocalTraining'):
    fn('sgd', None, None, None, None)


@pytest.mark.parametrize(
  ('fn', 'match'),
  [
    (fj.load_run, '`workdir` is 3; give a path.'),
    (lambda x: fj.write_report(x, 'page.html'), '`workdirs` is 3; give a path.'),
    (lambda x: fj.write_report('runs', x), '`output` is 3; give a path.'),
  ],
)
def test_paths_are_paths(fn, match):
  with pytest.raises(fj.UserError, match=match):
    fn(3)


def test_a_method_needs_local_training():
  with pytest.raises(fj.UserError, match='`local` is a Model, not a LocalTraining'):
    fj.algorithms.build('fesem', helpers.local().model)


def test_results_are_shown_in_notebooks():
  result = fj.simulate(**asked(rounds=1, finetune_epochs=0))
  shown = result._repr_html_()
  value = f'{result.summary["deployed"]["micro_accuracy"]:.4f}'
  assert shown.startswith(f'<p>1 rounds: deployed micro_accuracy {value}, finetuned')
  assert shown.count('<tr>') == 1 + 7
  assert '<th>deployed_accuracy</th>' in shown
  assert shown.endswith('</table><p>7 clients</p>')
  assert repr(result).splitlines()[1:] == repr(result.clients).splitlines()
  honest = {'deployed': {'micro_accuracy': 0.75}, 'finetuned': {'micro_accuracy': 1.0}}
  attacked = dataclasses.replace(result, summary=result.summary | {'honest': honest})
  assert repr(attacked).splitlines()[0] == (
    '1 rounds: deployed micro_accuracy 0.7500, finetuned micro_accuracy 1.0000 of '
    'honest clients'
  )
  named = result.clients._replace(names=np.array(['<b>', *'abcdef']))
  assert '<td>&lt;b&gt;</td>' in named._repr_html_()


def test_simulate_fits_in_the_head():
  assert len(inspect.signature(fj.simulate).parameters) <= 10
