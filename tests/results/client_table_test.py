"""Tables of clients: printed, as pandas has them, and compared between two runs."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import fesem_jax as fj
from fesem_jax.run.results import client_table, saved_client_table

FIGURES = ('deployed_accuracy', 'deployed_f1', 'finetuned_accuracy', 'finetuned_f1')


def table(count=4, seed=0, **columns):
  """A table of clients of which the last has no test examples."""
  rng = np.random.default_rng(seed)
  figures = rng.random((4, count))
  figures[:, -1] = np.nan
  tested = np.arange(count)[::-1].copy()
  made = fj.ClientTable(
    names=np.array([f'c{i}' for i in range(count)]), examples=np.arange(count) + 10,
    test_examples=tested, true_cluster=None, cluster=np.arange(count) % 2,
    **dict(zip(FIGURES, figures, strict=True)),
  )  # fmt: skip
  return made._replace(**columns)


def test_a_table_prints_aligned_columns_of_what_is_known():
  odd = table(names=np.array(['c0', 'a\nb', 'n' * 99, '']), true_cluster=None)
  odd = odd._replace(metrics={'deployed_nll': np.array([0.5, 1e-9, 2e7, np.nan])})
  head, *lines, foot = str(odd).splitlines()
  assert head.split() == [
    *('names', 'examples', 'test_examples', 'cluster'), *FIGURES, 'deployed_nll'
  ]  # fmt: skip
  assert foot == '[4 clients]'
  assert len(lines) == 4
  assert lines[1].startswith('a b ')
  assert 'nnn...nnn' in lines[2]
  assert [line.split()[-1] for line in lines] == [
    '0.5000', '1.000e-09', '2.000e+07', '-',
  ]  # fmt: skip
  ends = {len(line) for line in (head, *lines)}
  assert len(ends) == 1  # Figures end below each other.
  assert f'{odd.deployed_f1[0]:.4f}' in lines[0]
  assert repr(odd) == str(odd)


@pytest.mark.parametrize(('count', 'shown'), [(1, 1), (11, 11), (12, 11), (4000, 11)])
def test_a_long_table_prints_its_head_and_tail(count, shown):
  made = table(count)
  _, *lines, foot = str(made).splitlines()
  assert foot == f'[{count} clients]'
  assert len(lines) == shown
  assert lines[0].split()[0] == 'c0'
  assert lines[-1].split()[0] == f'c{count - 1}'
  assert '...' in lines[5].split() if shown < count else '...' not in str(made)


def test_a_table_becomes_a_data_frame():
  pandas = pytest.importorskip('pandas')
  made = table(metrics={'deployed_nll': np.arange(4.0)})
  frame = made.to_pandas()
  assert isinstance(frame, pandas.DataFrame)
  known = {name: x for name, x in made.columns().items() if x is not None}
  assert list(frame) == list(known)
  assert not {'true_cluster', 'honest', 'metrics'} & set(frame)
  for name, column in known.items():
    np.testing.assert_array_equal(frame[name].to_numpy(), column)


def test_metrics_are_columns_of_the_file(tmp_path):
  metrics = {
    'deployed_a"b,c': np.array([1, 2, np.nan, 4]),
    'finetuned_a"b,c': np.arange(4.0),
  }
  for honest in (None, np.array([True, False, True, True])):
    made = table(metrics=metrics, honest=honest)
    client_table.write(tmp_path, made)
    read = saved_client_table.read(tmp_path)
    for name, column in made.columns().items():
      np.testing.assert_array_equal(read.columns()[name], column)
    assert read.of('c1')['deployed_a"b,c'] == 2
    assert list(read.columns()) == list(made.columns())


@pytest.mark.parametrize(('old', 'new'), [
    (',7.5\n', ',many\n'), (',7.5\n', '\n'), (',7.5\n', ',7.5,1\n'),
])  # fmt: skip
def test_damaged_columns_of_metrics_are_refused(old, new, tmp_path):
  metrics = {'deployed_x': np.arange(4.0), 'finetuned_x': np.full(4, 7.5)}
  client_table.write(tmp_path, table(metrics=metrics))
  path = tmp_path / 'clients.csv'
  assert saved_client_table.read(tmp_path) is not None
  path.write_text(path.read_text().replace(old, new, 1))
  with pytest.raises(fj.UserError, match=r'clients\.csv'):
    saved_client_table.read(tmp_path)


def test_differences_of_clients_have_a_paired_interval():
  a, b = table(30), table(30, seed=1)
  found = fj.compare_clients(a, SimpleNamespace(clients=b), 'finetuned_f1')
  want = a.finetuned_f1 - b.finetuned_f1
  np.testing.assert_array_equal(found.difference, want)
  tested = slice(0, 29)
  paired = stats.ttest_rel(a.finetuned_f1[tested], b.finetuned_f1[tested])
  low, high = paired.confidence_interval(0.95)
  assert found.mean == pytest.approx(want[tested].mean(), rel=1e-12)
  assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
  assert found.gain.tolist() == [f'c{i}' for i in range(30) if want[i] > 0]
  assert found.lose.tolist() == [f'c{i}' for i in range(30) if want[i] < 0]
  first, _, *lines, foot = str(found).splitlines()
  assert first.startswith(f'finetuned_f1, a - b: mean {found.mean:+.4f}, 95 % interval')
  assert f'{len(found.gain)} clients gain, {len(found.lose)} lose' in first
  assert first.endswith('0 stay, 1 are left out')
  assert foot == '[29 clients]'
  names = [line.split()[0] for line in lines]
  assert names[0] == f'c{np.nanargmin(want)}'
  assert names[-1] == f'c{np.nanargmax(want)}'


def test_clients_in_another_order_are_compared_by_name():
  a, b = table(30), table(30, seed=1)
  order = np.random.default_rng(2).permutation(30)
  columns = b._asdict().items()
  moved = fj.ClientTable(**{n: None if x is None else x[order] for n, x in columns})
  found, want = fj.compare_clients(a, moved), fj.compare_clients(a, b)
  np.testing.assert_array_equal(found.difference, want.difference)
  assert found[5:] == want[5:]


def test_a_metric_of_the_models_own_is_compared():
  a = table(metrics={'deployed_nll': np.array([3.0, 2, 1, np.nan])})
  b = a._replace(metrics={'deployed_nll': np.array([1.0, 2, 2, np.nan])})
  found = fj.compare_clients(a, b, 'deployed_nll')
  assert found.difference[:3].tolist() == [2, 0, -1]
  assert (found.gain.tolist(), found.lose.tolist()) == (['c0'], ['c2'])
  assert '1 clients have more, 1 less' in str(found)  # Which of them is better?
  with pytest.raises(fj.UserError, match='figure'):
    fj.compare_clients(a, table(), 'deployed_nll')


@pytest.mark.parametrize('name', ['rmse', 'loss', 'perplexity'])
def test_the_lower_error_gains(name):
  figure = f'deployed_{name}'
  a = table(metrics={figure: np.array([3.0, 2, 1, np.nan])})
  found = fj.compare_clients(
    a, a._replace(metrics={figure: np.array([1.0, 2, 2, np.nan])}), figure
  )
  assert (found.gain.tolist(), found.lose.tolist()) == (['c2'], ['c0'])
  _, _, first, *_, last, _ = str(found).splitlines()  # From the greatest loss on.
  assert (first.split()[0], last.split()[0]) == ('c0', 'c2')


def test_infinite_differences_count_beside_the_mean():
  a = table(metrics={'deployed_rmse': np.array([np.inf, 2, 1, np.inf])})
  b = table(metrics={'deployed_rmse': np.array([1, 1, 2, np.inf])})
  found = fj.compare_clients(a, b, 'deployed_rmse')
  assert (found.gain.tolist(), found.lose.tolist()) == (['c2'], ['c0', 'c1'])
  first, _, *lines, _ = str(found).splitlines()
  assert 'mean +0.0000' in first
  assert first.endswith(
    '1 are left out; infinite differences that are not in the mean: 1'
  )
  assert [line.split()[0] for line in lines] == ['c0', 'c1', 'c2']


def test_bad_clients_are_not_compared():
  a, b = table(30), table(30, seed=1)
  want = fj.compare_clients(a, b, 'deployed_accuracy')
  assert 'honest' not in str(want)
  honest = np.arange(30) >= 10
  for pair in ((a._replace(honest=honest), b), (a, b._replace(honest=honest))):
    found = fj.compare_clients(*pair, 'deployed_accuracy')
    assert np.isnan([found.a[:10], found.b[:10]]).all()
    assert found.mean == np.nanmean(want.difference[10:])
    gain = set(want.gain) - set(a.names[:10])
    assert set(found.gain) == gain
    assert str(found).startswith('deployed_accuracy of honest clients, a - b: mean')
    assert '11 are left out' in str(found)


def test_one_client_has_no_interval():
  found = fj.compare_clients(table(2), table(2, seed=1))
  assert (found.low, found.high) == (None, None)
  assert 'interval' not in str(found)


def of_data(digest):
  return SimpleNamespace(clients=table(), config={'data_digest': digest})


@pytest.mark.parametrize(('b', 'subject'), [
    (table(5), 'clients'), (of_data('other'), 'data_digest'),
    (table(names=np.array(['c0', 'c1', 'c2', 'c2'])), 'clients'),
    (table(deployed_accuracy=np.full(4, np.nan)), 'figure'),
])  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(b, subject):
  with pytest.raises(fj.UserError, match=f'^{subject}: '):
    fj.compare_clients(of_data('one'), b)


def test_blocks_of_clients_are_one_table(tmp_path, monkeypatch):
  made = table(5, names=np.array(['a', 'b,"', '\udcff', 'd', 'e']))
  client_table.write(tmp_path, made)
  content = (tmp_path / 'clients.csv').read_bytes()
  for block in (1, 2, 5, 100):
    monkeypatch.setattr(client_table, '_BLOCK', block)
    client_table.write(tmp_path, made)
    assert (tmp_path / 'clients.csv').read_bytes() == content


@pytest.mark.parametrize('block', [1, 2, 3])
@pytest.mark.parametrize('truth', [
  None, [0, 1, 2, 3, 4], ['', 'x', '01', '3', '4'], ['7', '8', '9', '10', 'last'],
])  # fmt: skip
def test_a_file_read_in_blocks_is_one_table(block, truth, tmp_path, monkeypatch):
  of_model = {'deployed_x': np.arange(5.0), 'finetuned_x': np.arange(5.0)}
  made = table(
    5, names=np.array(['a', 'longer', '', 'd', '5']), metrics=of_model,
    true_cluster=None if truth is None else np.array(truth),
    cluster=None if truth is None else np.arange(5), honest=np.arange(5) > 0,
    added={'best': np.arange(5), 'gain': np.array([1.0, np.nan, 3, 4, 2.5])},
  )  # fmt: skip
  client_table.write(tmp_path, made)
  whole = saved_client_table.read(tmp_path).columns()
  monkeypatch.setattr(saved_client_table, '_BLOCK', block)
  found = saved_client_table.read(tmp_path)
  assert list(found.columns()) == list(whole)
  for name, x in found.columns().items():
    np.testing.assert_array_equal(x, whole[name], strict=x is not None)


def test_names_are_no_wider_than_the_longest():
  for names, width in (([8, 12], 2), ([-5, 3], 2), (['a ', 'ß'], 2), ([7], 1)):
    found = client_table.as_text(np.array(names))
    assert found.dtype == f'<U{width}'
    assert found.tolist() == [str(x) for x in names]
