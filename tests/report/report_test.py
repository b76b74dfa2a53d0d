"""Pages of runs hold what their workdirs hold, and nothing that they do not."""

import html
import json
import re

import numpy as np
import pandas as pd
import pytest

import fesem_jax as fj
from fesem_jax.tasks import REGRESSION
from fesem_jax.utils.errors import UserError
from tests.support.reported import clients_of, value_of, write_comparison, write_run

charts = pytest.importorskip('fesem_jax.analysis.report.charts')
content = pytest.importorskip('fesem_jax.analysis.report.content')


@pytest.fixture
def without_figures(monkeypatch):
  """Pages have no figures that stand still, which take most of their time."""
  monkeypatch.setattr(content, '_figures', lambda *frames: [])


@pytest.fixture(scope='module')
def comparison(tmp_path_factory):
  return write_comparison(tmp_path_factory.mktemp('comparison'))


@pytest.fixture(scope='module')
def page(comparison):
  return fj.write_report(comparison, comparison / 'page.html').read_text()


def specs(text):
  """Name of each chart of a page -> its specification."""
  outcome = re.findall(r"vegaEmbed\('#chart-(\w+)', (.*), \{renderer", text)
  return {name: json.loads(spec) for name, spec in outcome}


def markup(text):
  """A page without its scripts and figures."""
  return re.sub(r'<script>.*?</script>|<svg.*?</svg>', '', text, flags=re.S)


def rows(spec):
  """The data of a chart."""
  (data,) = spec['datasets'].values()
  return pd.DataFrame(data)


def test_the_table_is_the_one_of_the_comparison(comparison, page, without_figures):
  table = fj.Comparison(fj.load_runs(comparison)).table
  assert table.to_html() in page
  assert all(note in html.unescape(page) for note in table.notes)
  other = fj.write_report(
    comparison, comparison / 'other.html', 'fed_avg', 'best'
  ).read_text()
  options = {'reference': 'fed_avg', 'report': 'best'}
  outcome = fj.Comparison(fj.load_runs(comparison), **options)
  assert outcome.table.to_html() in other


def test_curves_are_means_of_seeds(page):
  curves = rows(specs(page)['curves'])
  chosen = curves.query('metric == "deployed.micro_accuracy" and round == 4')
  each = 100 * np.array([value_of(seed, 4, -0.1) for seed in (0, 1)])
  first = chosen.set_index('method').loc['fed_avg']
  np.testing.assert_allclose(first['mean'], each.mean())
  assert first['seeds'] == 2
  assert first['total_seconds'] == 2
  assert {'train_loss', 'objective', 'ari'} <= set(curves['metric'])
  # Those of many rounds are thinned and keep their ends.
  rounds = pd.DataFrame({'round': np.arange(1, 3001), 'value': np.arange(3000.0)})
  method = pd.Categorical(['a'] * 3000)
  curve = rows(charts.curves(rounds.assign(run='a', method=method, metric='loss')))
  assert len(curve) == 200
  assert (curve['round'].min(), curve['round'].max()) == (1, 3000)


def test_clients_are_those_of_the_files(page):
  clients = rows(specs(page)['clients'])
  shown = clients[clients['method'] == 'fesem(2)'].reset_index(drop=True)
  expected = clients_of([f'c{i:02d}' for i in range(12)])
  assert shown['client'].tolist() == expected['client'].tolist()
  scores = [frame['deployed_accuracy'] for frame in (shown, expected)]
  np.testing.assert_allclose(scores[0].astype(float), 100 * scores[1], atol=1e-3)
  assert shown['true_cluster'].tolist() == ['upright', 'turned'] * 6
  assert set(clients['cluster']) == {'0', '1', 'none'}
  assert shown['x'].notna().all()


NAME = '</script><img src=x onerror=alert(1)>&"\'|`*\x01'


def test_names_of_users_are_text(tmp_path):
  folder = tmp_path / 'a<b>|x' / '<i>m'
  write_run(folder / 'seed0', names=[f'{NAME}{i}' for i in range(8)])
  text = fj.write_report(tmp_path / 'a<b>|x', tmp_path / 'page.html').read_text()
  assert '<img' not in markup(text)
  assert '<i>m' not in text
  assert 'a<b>' not in text
  assert '\\u003cimg' in text
  assert rows(specs(text)['clients'])['client'][3].startswith('</script><img')


def test_a_page_loads_nothing(page):
  assert "default-src 'none'" in page
  assert not re.search(r'(src|href)="(?!#)', markup(page))
  assert not re.search(r'xlink:href="(?!#|data:)', page)


def test_an_unfinished_run_shows_what_there_is(tmp_path):
  folder = write_run(tmp_path / 'run', finished=False)
  text = fj.write_report(folder, tmp_path / 'page.html').read_text()
  assert 'No run has finished.' in text
  assert 'going on' in text
  assert set(specs(text)) == {'curves'}
  assert set(rows(specs(text)['curves'])['round']) == {1, 2, 3}


def test_settings_that_differ_stand_apart(tmp_path, without_figures):
  for i, rate in enumerate((0.1, 0.3)):
    folder = write_run(tmp_path / f'm{i}' / 'seed0', seed=0)
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps(config | {'learning_rate': rate}))
  text = fj.write_report(tmp_path, tmp_path / 'page.html').read_text()
  differing, common = text.split('Settings of all runs</summary>')
  assert 'learning_rate' in differing[differing.index('Settings that differ') :]
  assert 'learning_rate' not in common
  assert 'dataset' in common


@pytest.mark.parametrize(('folders', 'options', 'subject'), [
  ([], {}, 'workdirs'), (['empty'], {}, 'empty'),
  (['run'], {'reference': 'x'}, 'reference'), (['run'], {'report': 'first'}, 'report'),
  (['run', 'other'], {}, 'workdirs'), (['damaged'], {}, 'summary.json'),
])  # fmt: skip
def test_what_cannot_be_reported_is_refused(tmp_path, folders, options, subject):
  (tmp_path / 'empty').mkdir()
  write_run(tmp_path / 'run')
  write_run(tmp_path / 'other', task=REGRESSION)
  (write_run(tmp_path / 'damaged') / 'summary.json').write_text('{')
  paths = [tmp_path / name for name in folders]
  with pytest.raises(UserError, match=subject):
    fj.write_report(paths, tmp_path / 'page.html', **options)
