"""Files of a workdir that another program wrote or that are of another run."""

import json
import zipfile

import jax
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax import models
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.run.results import client_table, saved_client_table, saved_models
from fesem_jax.run.results.client_table import ClientTable
from fesem_jax.run.results.deployed_models import Examples, by_layer
from fesem_jax.utils.errors import UserError

NAMES = ['a', 'b', 'c', 'd']
CHOICE = np.array([0, 1, 1, 0], np.int32)
MIXTURE = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [1, 0]], np.float32)
MODEL = models.build('mlp', (6,), 3, (5,))
X = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
CONFIG = {'model': 'mlp', 'hidden': ['5']}


def stack(count):
  keys = jax.random.split(jax.random.key(0), count)
  return jax.device_get(jax.vmap(MODEL.init)(keys))


def table():
  """Of clients with figures of their own."""
  shares = np.array([0.25, 0.5, 0.75, 1.0])
  return ClientTable(
    np.array(NAMES), np.array([8, 9, 10, 11]), np.array([4, 4, 4, 4]), None,
    CHOICE.astype(np.int64), shares, shares / 2, shares, shares / 3,
  )  # fmt: skip


def write_run(folder, used, config=CONFIG, clients=None):
  """A finished run as `simulate` leaves it, but for its checkpoints."""
  clients = clients or table()
  columns = clients._asdict()
  record = {
    kind: {
      f'macro_{name}': float(np.nanmean(columns[f'{kind}_{name}']))
      for name in ('accuracy', 'f1')
    }
    for kind in ('deployed', 'finetuned')
  }
  summary = {'rounds': 1, **record, 'clients_digest': client_table.digest(clients)}
  (folder / 'config.json').write_text(json.dumps(config))
  (folder / 'metrics.jsonl').write_text(json.dumps({'round': 1, **record}) + '\n')
  (folder / 'summary.json').write_text(json.dumps(summary))
  client_table.write(folder, clients)
  examples = Examples((6,), 'float32', 1.0, 3)
  saved_models.write(folder, used, np.arange(len(clients.names)), clients, examples, 1)
  return folder


@pytest.fixture
def workdir(tmp_path):
  return write_run(tmp_path, ClientModels(stack(2), CHOICE))


@pytest.fixture
def mixed(tmp_path):
  return write_run(tmp_path, ClientModels(stack(2), mixture=MIXTURE))


def held(folder):
  with np.load(folder / 'models.npz') as arrays:
    return dict(arrays)


def about_of(arrays):
  return json.loads(str(arrays['about'][0]))


def refused(folder, message, model=None):
  """Reading is refused with one sentence, before anything is predicted."""
  with pytest.raises(UserError, match=message) as caught:
    _ = fj.load_run(folder, model).deployed
  assert '\n' not in str(caught.value)
  return str(caught.value)


def test_what_is_not_changed_is_read(workdir):
  want = fj.load_run(workdir).predict(X, client='b')
  np.testing.assert_array_equal(want, fj.load_run(workdir).predict(X, cluster=1))


@pytest.mark.parametrize('names', [NAMES[::-1], ['a', 'b', 'c', 'e']])
def test_arrays_that_were_changed_are_told_by_their_digest(workdir, names):
  np.savez(workdir / 'models.npz', **held(workdir) | {'names': np.array(names)})
  assert 'models.npz' in refused(workdir, 'is not what the run wrote')


@pytest.mark.parametrize(
  ('name', 'odd'), [('shape', [-6]), ('scale', 'x'), ('task', 'x'), ('rounds', 2)]
)
def test_what_a_file_says_of_itself_is_told_by_its_digest(workdir, name, odd):
  arrays = held(workdir)
  about = about_of(arrays) | {name: odd}
  np.savez(workdir / 'models.npz', **arrays | {'about': np.array([json.dumps(about)])})
  refused(workdir, r'models\.npz is not what the run wrote, as its digest shows')


def test_models_of_another_round_are_refused(workdir):
  with pytest.raises(fj.UserError, match=r'is of another round than summary\.json'):
    saved_models.read(workdir, 2, fj.load_run(workdir).clients)


@pytest.mark.parametrize('change', [
  lambda a, b, c, d: [a, c, b, d],  # Two rows of a cluster.
  lambda a, b, c, d: [a, '"c"' + b[3:], '"b"' + c[3:], d],
  lambda a, b, c, d: [a, b, b, c, d],
  lambda a, b, c, d: [a, b, '"e"' + c[3:], d],
  lambda a, b, c, d: [a, b, '"b"' + c[3:], d],
  lambda a, b, c, d: [a, b.replace('b",9', 'b",10'), c, d],
])  # fmt: skip
def test_a_table_of_other_clients_is_refused(workdir, change):
  head, *lines = (workdir / 'clients.csv').read_text().splitlines()
  (workdir / 'clients.csv').write_text('\n'.join([head, *change(*lines)]) + '\n')
  refused(workdir, r'clients\.csv and summary\.json in .* are not of one run')


def test_files_that_do_not_belong_together_are_named(tmp_path):
  one, other = tmp_path / 'one', tmp_path / 'other'
  used = ClientModels(stack(2), CHOICE)
  for folder in (one, other):
    folder.mkdir()
    write_run(folder, used)
  clients = table()._replace(examples=np.array([8, 9, 10, 12]))
  write_run(other, used, clients=clients)
  for name in ('clients.csv', 'summary.json', 'models.npz'):
    kept = (one / name).read_bytes()
    (one / name).write_bytes((other / name).read_bytes())
    refused(one, rf'{name} .*(are not of one run|is of another run)')
    (one / name).write_bytes(kept)
  fj.load_run(one).predict(X, client='a')
  summary = json.loads((one / 'summary.json').read_text())
  summary['deployed']['macro_accuracy'] = 0.9
  (one / 'summary.json').write_text(json.dumps(summary))
  refused(one, r'summary\.json and metrics\.jsonl in .*/one have different figures')
  summary['deployed']['macro_accuracy'] = 0.625
  (one / 'summary.json').write_text(json.dumps(summary))
  text = (one / 'metrics.jsonl').read_text()
  (one / 'metrics.jsonl').write_text(text.replace('0.625', '0.9'))
  refused(one, r'summary\.json and metrics\.jsonl in .*/one have different figures')


@pytest.mark.parametrize('value', [[6, 1], 'x', None, 10**400, {}, float('nan')])
def test_a_summary_of_other_figures_is_one_sentence(workdir, value):
  summary = json.loads((workdir / 'summary.json').read_text())
  summary['finetuned']['macro_f1'] = value
  (workdir / 'summary.json').write_text(json.dumps(summary))
  refused(workdir, r'summary\.json and metrics\.jsonl in .* have different')


def test_a_table_that_another_program_saved_again_is_read(workdir):
  text = (workdir / 'clients.csv').read_text()
  (workdir / 'clients.csv').write_text(text.replace('"', '').replace('\n', '\r\n'))
  assert fj.load_run(workdir).predict(X, client='b').shape == (16,)


@pytest.mark.parametrize(('old', 'new'), [
  ('"b",9', f'"b",{10**30}'), ('"b",9', '"b",-9'), ('"b",9', '"b",9_0'),
  (',1,0.5,', f',{2**63},0.5,'), (',1,0.5,', ',-1,0.5,'), (',1,0.5,', ',1,1.5,'),
  (',1,0.5,', ',1,-0.5,'), (',1,0.5,', ',1,inf,'),
])  # fmt: skip
def test_numbers_that_no_run_writes_are_one_sentence(workdir, old, new):
  text = (workdir / 'clients.csv').read_text()
  assert text.count(old) == 1
  (workdir / 'clients.csv').write_text(text.replace(old, new))
  with pytest.raises(UserError, match=r'clients\.csv (is damaged|and sum)') as caught:
    fj.load_run(workdir)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('truth', [
  np.array(['1', '2', '1', '2']), np.array(['01', '02', '01', '02']),
  np.array([str(10**30), '2', '1', '2']), np.array([3, -1, 3, 0]),
  np.array(['', 'x\ud800', 'y', 'y']),
])  # fmt: skip
def test_true_clusters_of_any_name_keep_the_digest(tmp_path, truth):
  clients = table()._replace(true_cluster=truth, honest=np.array([True, False] * 2))
  client_table.write(tmp_path, clients)
  found = saved_client_table.read(tmp_path)
  assert client_table.digest(found) == client_table.digest(clients)
  want = [str(x).encode(errors='backslashreplace').decode() for x in truth]
  assert [str(x) for x in found.true_cluster] == want


def test_what_is_no_model_is_refused(workdir):
  refused(workdir, '`model` does not compute with examples', model='mlp')


def test_a_model_of_other_examples_or_classes_is_refused(workdir):
  wide = models.build('mlp', (7,), 3, (5,))
  refused(workdir, r'`model` does not compute with examples of shape \(6,\)', wide)
  short = MODEL._replace(apply=lambda p, x: MODEL.apply(p, x)[:, :2])
  refused(workdir, r'outputs of shape \(1, 2\) .* models.npz needs \(1, 3\)', short)


def test_a_mixture_is_read(mixed):
  found = fj.load_run(mixed).predict(X, client='d', probabilities=True)
  want = fj.load_run(mixed).predict(X, cluster=0, probabilities=True)
  np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize(
  'hidden', [5, None, 'x', ['x'], [[5]], [-5], ['-5'], [True], {'0': 5}, [0]]
)
def test_widths_that_are_none_are_one_sentence(tmp_path, hidden):
  config = {'model': 'mlp', 'hidden': hidden}
  write_run(tmp_path, ClientModels(stack(2), CHOICE), config)
  refused(tmp_path, 'The model that .*config.json names|config.json names a model that')
  found = fj.load_run(tmp_path, MODEL).predict(X, client='b')
  assert found.shape == (16,)


@pytest.mark.parametrize('x', [[[1, 2], [3]], [object()] * 6])
def test_examples_that_are_no_array_are_one_sentence(workdir, x):
  with pytest.raises(UserError, match='`x`'):
    fj.load_run(workdir).predict(x, client='a')


def test_layers_of_the_file_are_those_of_the_model(workdir):
  found = fj.load_run(workdir).params(cluster=1)
  for path, x in by_layer(found).items():
    np.testing.assert_array_equal(x, by_layer(stack(2))[path][1])


def test_arrays_in_column_order_are_written_by_rows(tmp_path):
  x, path = np.asfortranarray(np.arange(12.0).reshape(2, 3, 2)), tmp_path / 'x.npz'
  with zipfile.ZipFile(path, 'w') as archive:
    saved_models._add(archive, 'x', x, np.array([1, 0]))
  np.testing.assert_array_equal(np.load(path)['x'], x[[1, 0]])
