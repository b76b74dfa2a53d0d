"""Files of a workdir that another program wrote or that are of another run."""

import json
import zipfile

import jax
import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax import models
from fesem_jax.core.algorithm import ClientModels
from fesem_jax.evaluation.evaluate import mean_scores
from fesem_jax.results import client_table, saved_models
from fesem_jax.results.client_table import ClientTable
from fesem_jax.results.deployed_models import Examples, by_layer
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
    np.array(NAMES),
    np.array([8, 9, 10, 11]),
    np.array([4, 4, 4, 4]),
    None,
    CHOICE.astype(np.int64),
    shares,
    shares / 2,
    shares,
    shares / 3,
  )


def write_run(folder, used, config=CONFIG, clients=None):
  """A finished run as `simulate` leaves it, but for its checkpoints."""
  clients = clients or table()
  columns = clients._asdict()
  record = {
    kind: mean_scores(
      clients.test_examples, columns[f'{kind}_accuracy'], columns[f'{kind}_f1']
    )._asdict()
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


def craft(folder, replaced=(), sealed=True, **about):
  """Changes the models; `sealed` mends their digest, so that it does not tell."""
  arrays = held(folder) | dict(replaced)
  path = folder / 'models.npz'
  said = about_of(arrays) | about
  names = [n for n, x in arrays.items() if x is not None and n != 'about']
  np.savez(path, **{name: arrays[name] for name in names})
  with zipfile.ZipFile(path, 'a') as archive:
    if sealed:
      said['arrays'] = saved_models._digest_of_arrays(archive)
    with archive.open('about.npy', 'w') as file:
      np.save(file, np.array([json.dumps({n: x for n, x in said.items() if x != ...})]))


def refused(folder, message, model=None):
  """Reading is refused with one sentence, before anything is predicted."""
  with pytest.raises(UserError, match=message) as caught:
    _ = fj.load_run(folder, model).deployed
  assert '\n' not in str(caught.value)
  return str(caught.value)


def as_older(folder):
  """As the version before digests wrote it."""
  craft(folder, sealed=False, format=1, clients=..., arrays=...)
  path = folder / 'summary.json'
  summary = json.loads(path.read_text())
  del summary['clients_digest']
  path.write_text(json.dumps(summary))


def test_what_is_not_changed_is_read(workdir):
  want = fj.load_run(workdir).predict(X, client='b')
  np.testing.assert_array_equal(want, fj.load_run(workdir).predict(X, cluster=1))
  craft(workdir)
  np.testing.assert_array_equal(fj.load_run(workdir).predict(X, client='b'), want)
  as_older(workdir)
  np.testing.assert_array_equal(fj.load_run(workdir).predict(X, client='b'), want)


@pytest.mark.parametrize('older', [False, True])
def test_arrays_by_column_are_mapped_rightly(workdir, older):
  want = fj.load_run(workdir).predict(X, client='b', probabilities=True)
  arrays = {name: np.asfortranarray(x) for name, x in held(workdir).items()}
  if older:
    as_older(workdir)
    arrays['about'] = held(workdir)['about']
  craft(workdir, arrays, sealed=not older)
  with zipfile.ZipFile(workdir / 'models.npz') as archive:
    assert b"'fortran_order': True" in archive.read('shared/dense0/kernel.npy')
  found = fj.load_run(workdir).predict(X, client='b', probabilities=True)
  np.testing.assert_array_equal(found, want)


def test_arrays_that_were_changed_are_told_by_their_digest(workdir):
  craft(workdir, {'names': np.array(NAMES[::-1])}, sealed=False)
  assert 'models.npz' in refused(workdir, 'holds other arrays than the run wrote')


@pytest.mark.parametrize('older', [False, True])
@pytest.mark.parametrize(
  'names',
  [NAMES[::-1], ['a', 'c', 'b', 'd'], ['a', 'b', 'c', 'c'], ['a', 'b', 'c', 'e']],
)
def test_models_of_other_clients_are_refused(workdir, names, older):
  if older:
    as_older(workdir)
  craft(workdir, {'names': np.array(names)}, sealed=not older)
  refused(workdir, 'disagree on the names of clients or their order')


def lines_of(folder):
  return (folder / 'clients.csv').read_text().splitlines()


@pytest.mark.parametrize(('change', 'older'), [
  (lambda a, b, c, d: [a, c, b, d], True),  # Two rows of a cluster.
  (lambda a, b, c, d: [a, '"c"' + b[3:], '"b"' + c[3:], d], True),
  (lambda a, b, c, d: [a, b, b, c, d], True),
  (lambda a, b, c, d: [a, b, '"e"' + c[3:], d], True),
  (lambda a, b, c, d: [a, b, '"b"' + c[3:], d], True),
  (lambda a, b, c, d: [a, b.replace('b",9', 'b",10'), c, d], False),
])  # fmt: skip
def test_a_table_of_other_clients_is_refused(workdir, change, older):
  head, *lines = (workdir / 'clients.csv').read_text().splitlines()
  (workdir / 'clients.csv').write_text('\n'.join([head, *change(*lines)]) + '\n')
  refused(workdir, r'clients\.csv does not belong to summary\.json')
  if older:
    as_older(workdir)
    refused(workdir, 'disagree on the names|not of one run')


def test_the_file_that_does_not_belong_is_named(tmp_path):
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
    said = refused(one, rf'{name} (does not belong|is of another run)')
    assert f'/one/{name} ' in said
    (one / name).write_bytes(kept)
  fj.load_run(one).predict(X, client='a')
  summary = json.loads((one / 'summary.json').read_text())
  summary['deployed']['macro_accuracy'] = 0.9
  (one / 'summary.json').write_text(json.dumps(summary))
  refused(one, r'summary\.json does not belong to metrics\.jsonl')
  summary['deployed']['macro_accuracy'] = 0.625
  (one / 'summary.json').write_text(json.dumps(summary))
  text = (one / 'metrics.jsonl').read_text()
  (one / 'metrics.jsonl').write_text(text.replace('0.625', '0.9'))
  refused(one, r'metrics\.jsonl does not belong to summary\.json')


@pytest.mark.parametrize('value', [[6, 1], 'x', None, 10**400, {}, float('nan')])
def test_a_summary_of_other_figures_is_one_sentence(workdir, value):
  summary = json.loads((workdir / 'summary.json').read_text())
  summary['finetuned']['macro_f1'] = value
  (workdir / 'summary.json').write_text(json.dumps(summary))
  refused(workdir, r'summary\.json does not belong to metrics\.jsonl')


def test_a_table_that_another_program_saved_again_is_read(workdir):
  text = (workdir / 'clients.csv').read_text()
  (workdir / 'clients.csv').write_text(text.replace('"', '').replace('\n', '\r\n'))
  assert fj.load_run(workdir).predict(X, client='b').shape == (16,)


@pytest.mark.parametrize(('old', 'new'), [
  ('"b",9', f'"b",{10**30}'),
  ('"b",9', '"b",-9'),
  ('"b",9', '"b",9_0'),
  ('"b",9', '"b",+9'),
  (',1,0.5,', f',{2**63},0.5,'),
  (',1,0.5,', ',-1,0.5,'),
  (',1,0.5,', ',1,1.5,'),
  (',1,0.5,', ',1,-0.5,'),
  (',1,0.5,', ',1,inf,'),
])  # fmt: skip
def test_numbers_that_no_run_writes_are_one_sentence(workdir, old, new):
  text = (workdir / 'clients.csv').read_text()
  assert text.count(old) == 1
  (workdir / 'clients.csv').write_text(text.replace(old, new))
  with pytest.raises(UserError, match=r'clients\.csv is damaged') as caught:
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
  found = client_table.read(tmp_path)
  assert client_table.digest(found) == client_table.digest(clients)
  want = [str(x).encode(errors='backslashreplace').decode() for x in truth]
  assert [str(x) for x in found.true_cluster] == want


@pytest.mark.parametrize(('name', 'value'), [
  ('shape', 'ab'), ('shape', [-6]), ('shape', 6), ('shape', None), ('shape', [6.0]),
  ('shape', [True]), ('shape', [0]), ('shape', [2**70]), ('shape', ...),
  ('dtype', 'float64'), ('dtype', None), ('dtype', ['uint8']),
  ('scale', 'x'), ('scale', None), ('scale', float('nan')), ('scale', float('inf')),
  ('scale', 0), ('scale', 1e300), ('scale', 1e-300), ('scale', 10**400),
  ('scale', True), ('scale', ...),
  ('num_classes', -1), ('num_classes', 0), ('num_classes', 3.0), ('num_classes', None),
  ('num_classes', True), ('num_classes', '3'), ('num_classes', 2**70),
])  # fmt: skip
def test_examples_that_make_no_sense_are_refused(workdir, name, value):
  craft(workdir, **{name: value})
  refused(workdir, rf'models.npz is damaged \(.*`{name}`.*delete it and run the same')


@pytest.mark.parametrize(('about', 'message'), [
  ({'shape': [7]}, r'its layer dense0/kernel is \(7, 5\), in the run \(6, 5\)'),
  ({'shape': [2, 2]}, r'its layer dense0/kernel is \(4, 5\)'),
  ({'shape': [2**30, 2**30, 2**30]}, 'model that cannot be made for examples'),
  ({'num_classes': 4}, r'its layer logits/bias is \(4,\), in the run \(3,\)'),
])  # fmt: skip
def test_examples_of_another_model_are_refused(workdir, about, message):
  craft(workdir, **about)
  refused(workdir, message)


@pytest.mark.parametrize(('about', 'message'), [
  ({'shape': [7]}, r'`model` takes no examples of shape \(7,\)'),
  ({'num_classes': 4}, r'logits of shape \(1, 3\) for one example, but .* 4 classes'),
])  # fmt: skip
def test_examples_that_a_given_model_does_not_take_are_refused(workdir, about, message):
  craft(workdir, **about)
  refused(workdir, message, MODEL)


def test_what_is_no_model_is_refused(workdir):
  refused(workdir, '`model` makes no model', model='mlp')


KERNEL = 'shared/dense0/kernel'


def kernel(folder):
  return held(folder)[KERNEL]


@pytest.mark.parametrize(('change', 'message'), [
  (lambda x: x.astype(str), 'dense0/kernel holds numbers of type <U'),
  (lambda x: x.astype('>f4'), 'dense0/kernel holds numbers of type >f4'),
  (lambda x: x.astype(np.complex64), 'holds numbers of type <c8'),
  (lambda x: x > 0, 'holds numbers of type |b1'),
  (lambda x: x.astype(np.int32), 'holds numbers of type <i4'),
  (lambda x: x.astype(np.longdouble), 'holds numbers of type'),
  (lambda x: x.astype('M8[s]'), 'holds numbers of type <M8'),
  (lambda x: x.view([('x', '<f4')]), 'holds numbers of type |V4'),
  (lambda x: x.astype(object), 'is damaged'),
  (lambda x: x * np.nan, 'dense0/kernel holds values that are not finite'),
  (lambda x: np.where(x == x[1, 2, 3], np.inf, x), 'not finite'),
  (lambda x: x[:, :0], 'is damaged'),
  (lambda x: x[0, 0, 0], 'is damaged'),
  (lambda x: x[:1], 'do not fit together'),
  (lambda x: x[:, :5], r'its layer dense0/kernel is \(6, 5\), in the run \(5, 5\)'),
  (lambda x: None, r'its layer dense0/kernel is \(6, 5\), in the run absent'),
])  # fmt: skip
def test_layers_that_no_run_writes_are_refused(workdir, change, message):
  craft(workdir, {KERNEL: change(kernel(workdir))})
  refused(workdir, message)


@pytest.mark.parametrize(('arrays', 'message'), [
  ({'choice': None}, 'which of 2 models each client uses'),
  ({'choice': 1 - CHOICE}, 'disagree on the clusters of clients'),
  ({'choice': CHOICE + 1}, 'clients choose other models than the 2'),
  ({'choice': CHOICE - 1}, 'clients choose other models than the 2'),
  ({'choice': CHOICE.astype(float)}, 'choice holds numbers of type <f8'),
  ({'choice': CHOICE.astype('>i4')}, 'choice holds numbers of type >i4'),
  ({'choice': CHOICE > 0}, 'choice holds numbers of type |b1'),
  ({'choice': CHOICE[:, None]}, r'choice has shape \(4, 1\)'),
  ({'choice': CHOICE[:3]}, 'do not fit together'),
  ({'choice': np.int32(1)}, r'choice has shape \(\)'),
  ({'names': None}, 'it has no names of clients'),
  ({'names': np.arange(4)}, 'names holds numbers of type'),
  ({'names': np.array([NAMES])}, r'names has shape \(1, 4\)'),
  ({'names': np.array(NAMES[:2]), 'choice': CHOICE[:2]}, 'disagree on the names'),
  ({'mixture': MIXTURE}, 'neither a choice nor layers of their own'),
  ({'own/dense0/kernel': np.zeros((4, 2, 6, 5), np.float32)}, 'is shared and of each'),
  ({'own/dense0': np.zeros((4, 2), np.float32)}, 'is a layer and holds layers'),
  ({'optimizer': np.zeros(3)}, 'it holds optimizer, which no run writes'),
])  # fmt: skip
def test_arrays_that_do_not_fit_the_clients_are_refused(workdir, arrays, message):
  craft(workdir, arrays)
  refused(workdir, message)


def test_a_global_model_of_clients_with_clusters_is_refused(tmp_path):
  write_run(tmp_path, ClientModels(stack(1)))
  refused(tmp_path, 'disagree on the clusters of clients')


def test_a_choice_of_clients_without_clusters_is_refused(tmp_path):
  clients = table()._replace(cluster=None)
  write_run(tmp_path, ClientModels(stack(2), CHOICE), clients=clients)
  refused(tmp_path, 'disagree on the clusters of clients')


def test_a_mixture_is_read(mixed):
  found = fj.load_run(mixed).predict(X, client='d', probabilities=True)
  want = fj.load_run(mixed).predict(X, cluster=0, probabilities=True)
  np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize(('mixture', 'message'), [
  (MIXTURE[:, :1], '`mixture` has 1 weights for 2 models'),
  (np.tile(MIXTURE, 2) / 2, '`mixture` has 4 weights for 2 models'),
  (MIXTURE[:, 0], r'mixture has shape \(4,\)'),
  (MIXTURE * 2, 'shares that add up to 1'),
  (MIXTURE * [1, 0] + [0, 2], 'shares that add up to 1'),
  (MIXTURE * np.nan, 'not finite'),
  (MIXTURE * [1.5, 1.5] - [0.25, 0.25], 'shares that add up to 1'),
  (MIXTURE[:, ::-1].copy(), 'disagree on the clusters of clients'),
  (None, 'which of 2 models each client uses'),
])  # fmt: skip
def test_a_mixture_that_makes_no_sense_is_refused(mixed, mixture, message):
  craft(mixed, {'mixture': mixture})
  refused(mixed, message)


@pytest.mark.parametrize(
  'hidden', [5, None, 'x', ['x'], [[5]], [5.7], [-5], ['-5'], [True], {'0': 5}, [0]]
)
def test_widths_that_are_none_are_one_sentence(tmp_path, hidden):
  config = {'model': 'mlp', 'hidden': hidden}
  write_run(tmp_path, ClientModels(stack(2), CHOICE), config)
  said = refused(tmp_path, r'as `hidden`, which must be a list of widths.*pass `model`')
  assert 'config.json' in said
  found = fj.load_run(tmp_path, MODEL).predict(X, client='b')
  assert found.shape == (16,)


def test_rows_may_not_reach_into_what_follows(workdir):
  """A header of two more clients, whose numbers would be those of other arrays."""
  x = kernel(workdir)
  path = workdir / 'models.npz'
  arrays = held(workdir)
  about = about_of(arrays)
  with zipfile.ZipFile(path, 'w') as archive:
    for name, value in arrays.items():
      with archive.open(f'{name}.npy', 'w') as file:
        if name == KERNEL:
          header = {'descr': '<f4', 'fortran_order': False, 'shape': (2, 7, 5)}
          np.lib.format.write_array_header_1_0(file, header)
          file.write(x.tobytes())
        elif name != 'about':
          np.save(file, value)
        else:
          about['arrays'] = saved_models._digest_of_arrays(archive)
          np.save(file, np.array([json.dumps(about)]))
  refused(workdir, 'is damaged')


@pytest.mark.parametrize('x', [[[1, 2], [3]], [object()] * 6])
def test_examples_that_are_no_array_are_one_sentence(workdir, x):
  with pytest.raises(UserError, match='`x`'):
    fj.load_run(workdir).predict(x, client='a')


def test_layers_of_the_file_are_those_of_the_model(workdir):
  found = fj.load_run(workdir).params(cluster=1)
  for path, x in by_layer(found).items():
    np.testing.assert_array_equal(x, by_layer(stack(2))[path][1])
