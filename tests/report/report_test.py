"""Pages of runs hold what their workdirs hold, and nothing that they do not."""

import base64
import dataclasses
import gzip
import html
import itertools
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.analysis import clients_table
from fesem_jax.analysis.comparing import Comparison
from fesem_jax.analysis.report import library
from fesem_jax.analysis.report import page as page_module
from fesem_jax.analysis.report.clients import clients
from fesem_jax.analysis.report.confusion import confusion
from fesem_jax.analysis.report.curves import curves
from fesem_jax.analysis.report.runs import labels, read_runs
from fesem_jax.run.results import files, saved_client_table
from fesem_jax.tasks import CLASSIFICATION, REGRESSION, SEQUENCE
from fesem_jax.utils.errors import UserError
from tests.support.commands import call
from tests.support.reported import (
  ROUNDS,
  table_of,
  value_of,
  write_comparison,
  write_run,
)

pytest.importorskip('vl_convert')


def held(text):
  """The data of a page."""
  packed = re.search(r'id="data">([^<]*)<', text)[1]
  return json.loads(gzip.decompress(base64.b64decode(packed)))


def page(workdirs, folder, **options):
  path = fj.write_report(workdirs, folder / 'page.html', **options)
  return path.read_text()


def cells(text):
  """The tables of HTML as lists of lines of cells."""
  found = []
  for table in re.findall(r'<table>(.*?)</table>', text, re.S):
    lines = re.findall(r'<tr>(.*?)</tr>', table, re.S)
    of = [re.findall(r'<t[hd][^>]*>(.*?)</t[hd]>', line, re.S) for line in lines]
    found.append([[html.unescape(cell) for cell in line] for line in of])
  return found


@pytest.fixture(scope='module')
def comparison(tmp_path_factory):
  return write_comparison(tmp_path_factory.mktemp('comparison'))


@pytest.fixture(scope='module')
def compared(comparison):
  return page(comparison, comparison)


def test_a_page_has_the_title_that_is_given(comparison, tmp_path):
  text = page(comparison, tmp_path, title='Rotated <digits>')
  assert '<title>Rotated &lt;digits&gt;' in text
  assert 'Rotated &lt;digits&gt;' not in page(comparison, tmp_path)


def test_the_table_is_the_one_that_compare_writes(comparison, compared):
  names = ('fed_avg', 'fesem(2)', 'hypo_cluster(2)')
  summaries = {
    label: [
      clients_table.with_clients(
        files.read_summary(folder), saved_client_table.read(folder)
      )
      for folder in (comparison / label / f'seed{s}' for s in (0, 1))
    ]
    for label in names
  }
  lines = Comparison(summaries, []).as_markdown().splitlines()
  written = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in lines
    if line.startswith('|') and not line.startswith('|---')
  ]
  section = compared[compared.index('id="table"') : compared.index('id="curves"')]
  shown = itertools.chain(*cells(section.replace('<strong>', '**')))
  assert [[c.replace('</strong>', '**') for c in row] for row in shown] == written
  assert 'Student t' in section


def test_methods_and_seeds_that_did_not_finish_are_said(tmp_path):
  for method, seeds in (('a', (0, 1)), ('b', (0, 1)), ('c', (0,))):
    for seed in seeds:
      write_run(tmp_path / method / f'seed{seed}', 'fed_avg', seed, clusters=0)
  for seed in (0, 1):  # As where training diverged.
    (tmp_path / 'b' / f'seed{seed}' / 'summary.json').unlink()
  page = fj.write_report(tmp_path, tmp_path / 'page.html').read_text()
  which = 'b, seed 0; b, seed 1; c, seed 1'
  assert f'did not finish or are missing: {which}.</p>' in page


def test_differences_are_paired_by_seed_where_runs_are_missing(tmp_path):
  for seed in (0, 1, 2):
    write_run(tmp_path / 'a' / f'seed{seed}', 'fed_avg', seed, 0, gain=0.03 * seed)
  for seed in (1, 2):
    write_run(tmp_path / 'b' / f'seed{seed}', 'non_fed', seed, 0, gain=0.01 * seed**2)
  text = page(tmp_path, tmp_path, reference='a')
  table, deployed, costs, *_ = cells(text[: text.index('id="curves"')])
  a = np.array([value_of(s, ROUNDS, 0.03 * s) for s in (0, 1, 2)])
  b = np.array([value_of(s, ROUNDS, 0.01 * s**2) for s in (1, 2)])
  by_method = {line[0]: line for line in table}
  column = table[0].index('deployed micro-acc')
  # Both seeds differ by the same, which does not tell the methods apart.
  assert by_method['a'][column] == f'{100 * a.mean():.1f} ± {100 * a.std(ddof=1):.1f}°'
  assert deployed[1][:2] == ['b', f'{100 * (b - a[1:]).mean():+.2f}']
  assert 'diverged' not in text[: text.index('id="curves"')]
  assert costs[0][:2] == ['method', 's/round']


def test_single_runs_and_comparisons_of_one_folder_are_on_one_page(tmp_path):
  write_comparison(tmp_path / 'table', seeds=(0, 1))
  write_comparison(tmp_path / '4', seeds=(0,))
  write_run(tmp_path / 'alone', 'ditto', 3, 0)
  write_run(tmp_path / 'deeper' / 'still' / 'seed0', 'non_fed', 0, 0)
  runs = read_runs([tmp_path])
  methods = ('fed_avg', 'fesem(2)', 'hypo_cluster(2)')
  assert sorted((run.label, run.seed) for run in runs) == sorted([
    *((f'{method}, 4', 0) for method in methods),
    *((f'{method}, table', seed) for method in methods for seed in (0, 1)),
    ('ditto', 3), ('still, deeper', 0),
  ])  # fmt: skip
  assert 'still, deeper' in page(tmp_path, tmp_path)


def test_confusion_is_that_of_the_portraits_by_cluster(comparison, compared):
  found, runs = held(compared)['confusion'], read_runs([comparison])
  assert len(found) == len(runs)
  for each in found:
    run = runs[each['run']]
    clusters = [] if run.label == 'fed_avg' else [0, 1]
    assert (each['names'], each['clusters']) == (list(map(str, range(10))), clusters)
    np.testing.assert_array_equal(each['counts'], run.portrait['confusion'])
    assert each['measured_on'] == 'test'


def test_confusion_that_has_no_room_or_no_examples_is_left_out(comparison):
  run = read_runs([comparison])[0]

  def with_counts(counts):
    portrait = run.portrait | {'confusion': counts}
    return dataclasses.replace(run, portrait=portrait)

  many, few = np.ones((5, 100, 100), int), np.ones((1, 100, 100), int)
  none = np.zeros((1, 10, 10), int)
  kinds = [with_counts(c) for c in (none, many, few)]
  assert sorted(each['run'] for each in confusion(kinds)) == [1, 2]
  crowded = [with_counts(many)] * 8
  assert len(confusion(crowded)) == 6
  assert not confusion([with_counts(np.ones((6, 100, 100), int))])


def test_curves_are_the_records(comparison, compared):
  data = held(compared)
  runs = read_runs([comparison])
  assert data['labels'] == labels(runs) == ['fed_avg', 'fesem(2)', 'hypo_cluster(2)']
  keys = [figure['key'] for figure in data['curves']['figures']]
  assert keys[:2] == ['deployed/micro_accuracy', 'finetuned/micro_accuracy']
  assert {'train_loss', 'moved', 'ari'} <= set(keys)
  for run, curve in zip(runs, data['curves']['runs'], strict=True):
    assert curve['rounds'] == [1, 2, 3, 4]
    assert curve['axes']['seconds'] == [0.5, 1, 1.5, 2]
    assert curve['series']['train_loss'] == [None, [1, 0.5, 0.33333, 0.25]]
    places, values = curve['series']['deployed/micro_accuracy']
    wanted = [run.history[i]['deployed']['micro_accuracy'] for i in (1, 3)]
    assert places == [1, 3]
    np.testing.assert_allclose(values, wanted, rtol=1e-4)


def test_long_runs_are_thinned_and_keep_their_ends(tmp_path):
  folder = write_run(tmp_path / 'run', clusters=0, finished=False)
  lines = [{'round': i, 'train_loss': i / 7, 'seconds': 1.0} for i in range(1, 3001)]
  (folder / 'metrics.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in lines))
  curve = held(page(folder, tmp_path))['curves']['runs'][0]
  places, values = curve['series']['train_loss']
  assert len(places) == len(values) == 400
  assert (places[0], places[-1], values[-1]) == (0, 2999, 428.57)


def test_long_seeds_of_a_method_have_points_in_the_same_rounds(tmp_path):
  (run,) = read_runs([write_run(tmp_path / 'run')])

  def seed(label, count, every=1):
    rounds = range(every, every * count + 1, every)
    history = [{'round': number, 'train_loss': 1.0} for number in rounds]
    return dataclasses.replace(run, label=label, history=history)

  runs = [seed('a', 1000), seed('a', 570), seed('b', 20, every=50)]
  found = curves(runs, CLASSIFICATION)['runs']
  points = []
  for each in found:
    places, values = each['series']['train_loss']
    at = range(len(values)) if places is None else places
    points.append([each['rounds'][place] for place in at])
  long, short, other = points
  assert short == [number for number in long if number <= 570]
  assert (long[0], long[-1], short[-1]) == (1, 1000, 570)
  assert len(long) <= 401
  assert len(other) == 20  # Of a method whose curve is short, all.


@pytest.mark.skipif(shutil.which('node') is None, reason='Node.js is not installed')
def test_means_of_curves_are_of_all_seeds_that_go_on():
  seeds = {0: [5, 10, 15, 20], 1: [5, 10, 12]}  # The second ends after round 12.
  rows = [
    {'i': seed, 'label': 0, 'round': number, 'x': number, 'y': 1 - seed}
    for seed, rounds in seeds.items()
    for number in rounds
  ]
  script = (page_module._TEMPLATES / 'curves.js').read_text()
  shown = 'averaged(rows).map((r) => [r.round, r.y, r.seed, r.i])'
  call = f'const rows = {json.dumps(rows)}; console.log(JSON.stringify({shown}));'
  done = subprocess.run(
    ['node', '-e', script + call],
    capture_output=True,
    text=True,
    check=True,
    timeout=60,
  )
  assert json.loads(done.stdout) == [
    *([number, 0.5, 'mean of 2 seeds', '0 2'] for number in (5, 10)),
    *([number, 1, 'mean of 1 seeds', '0 1'] for number in (15, 20)),
  ]


def test_values_that_are_not_finite_are_gaps(tmp_path):
  folder = write_run(tmp_path / 'run', clusters=0, finished=False)
  losses = [2.0, np.inf, 1.0, np.nan]
  lines = [{'round': i, 'train_loss': x, 'bad': np.nan} for i, x in enumerate(losses)]
  (folder / 'metrics.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in lines))
  curve = held(page(folder, tmp_path))['curves']
  assert curve['runs'][0]['series'] == {'train_loss': [None, [2, None, 1, None]]}


def test_gigabytes_are_those_sent_both_ways_so_far(tmp_path):
  folder = write_run(tmp_path / 'run', clusters=0, finished=False)
  lines = [{'round': i, 'bytes_up': 10**9, 'bytes_down': 5 * 10**8} for i in (1, 2)]
  (folder / 'metrics.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in lines))
  curve = held(page(folder, tmp_path))['curves']
  assert curve['axes'] == ['gigabytes']
  assert curve['runs'][0]['axes']['gigabytes'] == [1.5, 3]


def test_clients_are_those_of_the_tables(compared):
  data = held(compared)['clients']
  assert len(data['runs']) == 6
  assert [held['run'] for held in data['runs']] == [0, 2, 4, 1, 3, 5]
  first = next(h for h in data['runs'] if h['run'] == 2)
  table = table_of([f'c{i:02d}' for i in range(12)])
  everyone = data['federations'][first['federation']]
  assert everyone['names'] == table.names.tolist()
  assert everyone['truth_names'] == ['upright', 'turned']
  assert everyone['examples'] == table.examples.tolist()
  assert first['cluster'] == table.cluster.tolist()
  figures = first['figures']['deployed_accuracy']
  assert figures[:2] == [None, None]
  np.testing.assert_allclose(figures[2:], table.deployed_accuracy[2:], rtol=1e-3)
  assert first['map']['shares'] == [60, 25]
  shares = np.array(everyone['labels']['shares'])
  np.testing.assert_allclose(shares.sum(axis=1), 100, rtol=1e-2)


@pytest.mark.parametrize(
  ('dataset', 'name'), [('cifar10', 'frog'), ('other', '6'), (['a'], '6'), (None, '6')]
)
def test_classes_of_a_known_data_set_have_its_names(tmp_path, dataset, name):
  folder = write_run(tmp_path / 'run')
  config = json.loads((folder / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps(config | {'dataset': dataset}))
  with np.load(folder / 'clients.npz') as held_arrays:
    arrays = dict(held_arrays)
  arrays['label_counts'] = np.ones((len(arrays['label_counts']), 10), int)
  np.savez(folder / 'clients.npz', **arrays)
  labels = held(page(folder, tmp_path))['clients']['federations'][0]['labels']
  assert labels['names'][6] == name


@pytest.mark.parametrize('task', [CLASSIFICATION, REGRESSION, SEQUENCE])
def test_worst_and_best_follow_the_task(tmp_path, task):
  folder = write_run(tmp_path / 'run', task=task)
  data = held(page(folder, tmp_path))
  found = data['clients']['runs'][0]
  assert 'fairness' not in found
  worst, best = ([line[0] for line in found[k]] for k in ('worst', 'best'))
  up = task.primary.higher_is_better
  low, high = ['c02', 'c03', 'c04', 'c05', 'c06'], ['c11', 'c10', 'c09', 'c08', 'c07']
  assert (worst, best) == ((low, high) if up else (high, low))
  assert data['figures'][0]['higher'] == up
  assert ('labels' in data['clients']['federations'][0]) == (task == CLASSIFICATION)


def test_clients_of_an_infinite_figure_are_the_worst(tmp_path):
  (run,) = read_runs([write_run(tmp_path / 'run', task=REGRESSION)])
  name = 'deployed_rmse'
  figures = run.clients.metrics[name].copy()
  figures[run.clients.names == 'c02'] = np.inf
  table = run.clients._replace(metrics=run.clients.metrics | {name: figures})
  found = clients([dataclasses.replace(run, clients=table)], REGRESSION)['runs'][0]
  assert found['worst'][0][0] == 'c02'


def test_bad_clients_are_neither_worst_nor_best(tmp_path):
  (run,) = read_runs([write_run(tmp_path / 'run')])
  honest = np.array([name != 'c02' for name in run.clients.names])
  run = dataclasses.replace(run, clients=run.clients._replace(honest=honest))
  found = clients([run], CLASSIFICATION)['runs'][0]
  assert [line[0] for line in found['worst'][:2]] == ['c03', 'c04']
  assert found['of_honest']
  # Names are what the cells of the figure go by.
  names = [f'Tomato_leaf_{kind}_curl_virus' for kind in ('yellow', 'white', 'mosaic')]
  portrait = run.portrait | {'confusion': np.ones((1, 3, 3), int)}
  run = dataclasses.replace(run, portrait=portrait | {'class_names': np.array(names)})
  (found,) = confusion([run])
  assert found['bad']
  assert found['names'] == names


def test_figures_of_clients_and_curves_say_on_which_examples_they_are(tmp_path):
  (run,) = read_runs([write_run(tmp_path / 'run')])
  held_out = dataclasses.replace(run, config=run.config | {'evaluate_on': 'validation'})
  for runs, kind, said in (
    ([run], 'test', ''),
    ([held_out], 'validation', ', validation examples'),
    ([held_out, run], 'validation', ', validation examples of some methods'),
  ):
    assert clients(runs, CLASSIFICATION)['runs'][0]['measured_on'] == kind
    titles = [f['title'] for f in curves(runs, CLASSIFICATION)['figures']]
    assert titles[0] == f'Deployed micro accuracy{said}'
    assert 'Training loss' in titles


def test_curves_say_whether_bad_clients_count_and_first_are_those_of_tables(tmp_path):
  (clean,) = read_runs([write_run(tmp_path / 'run')])
  history = [
    r | {'honest': {k: r[k] for k in ('deployed', 'finetuned', 'ari')}}
    for r in clean.history
    if 'deployed' in r
  ]
  bad = dataclasses.replace(clean, history=history)

  def titles(*runs):
    return [f['title'] for f in curves(runs, CLASSIFICATION)['figures']]

  name = 'Deployed micro accuracy'
  of_honest, of_all = ', honest clients', ', all clients'
  assert titles(bad, bad)[0] == name + of_honest
  assert titles(bad, clean)[0] == name + of_all
  every = {*titles(bad)} & {*titles(bad, clean)}
  index = 'Agreement with the true clusters (adjusted Rand index)'
  assert {x + of for x in (name, index) for of in (of_honest, of_all)} <= every
  assert index in titles(clean)


def test_of_many_clients_some_are_shown_and_the_worst_is_found(tmp_path):
  names = [f'client{i}' for i in range(12_000)]
  runs = read_runs([write_run(tmp_path / 'run', names=names)])
  of_run = clients(runs, CLASSIFICATION)['runs'][0]
  assert of_run['count'] == 12_000
  assert len(of_run['cluster']) <= 10_000
  assert [line[0] for line in of_run['worst'][:2]] == ['client2', 'client3']
  shown = clients(runs, CLASSIFICATION)['federations'][0]['names']
  sampled = runs[0].portrait['sampled']
  assert [shown[i] for i in of_run['map']['clients']] == [names[i] for i in sampled]


def test_fairness_is_that_of_the_summary(tmp_path):
  folder = write_run(tmp_path / 'run')
  fairness = {'clients': 10, 'worst_decile': 0.25, 'deviation': 0.1, 'jain': 0.98765}
  summary = files.read_summary(folder) | {'fairness': {'deployed': fairness}}
  (folder / 'summary.json').write_text(json.dumps(summary))
  of_run = clients(read_runs([folder]), CLASSIFICATION)['runs'][0]
  assert of_run['fairness'] == [0.25, 0.1, 0.9877]


NAME = '</script><img src=x onerror=alert(1)>&"\'|`*\ud800'


def test_names_of_users_are_text(tmp_path):
  folder = tmp_path / 'a<b>|x' / '<i>m'
  write_run(folder / 'seed0', names=[f'{NAME}{i}' for i in range(8)])
  text = page(tmp_path / 'a<b>|x', tmp_path)
  assert '<img' not in text
  assert '<i>m' not in text
  assert 'a<b>' not in text
  data = held(text)
  assert data['clients']['federations'][0]['names'][3].startswith('</script><img')
  assert data['labels'] == ['<i>m']
  assert any('<i>m' in line[0] for table in cells(text) for line in table)


def test_a_page_loads_nothing():
  folder = pathlib.Path(library.__file__).parent / 'templates'
  text = (folder / 'page.html').read_text()
  assert "default-src 'none'" in text
  assert not re.search(r'(src|href)="(?!#)', text)


def test_an_unfinished_run_shows_what_there_is(tmp_path):
  folder = write_run(tmp_path / 'run', finished=False)
  text = page(folder, tmp_path)
  assert 'No run has finished' in text
  assert f'not finished: round 3 of {ROUNDS}' in text
  data = held(text)
  assert data['curves']['runs'][0]['rounds'] == [1, 2, 3]
  assert data['clients']['runs'] == []
  assert data['clusters'][0]['sizes'] == [[6, 6]] * 3


def test_runs_of_one_method_are_told_apart_by_their_flags(tmp_path):
  for i, rate in enumerate((0.1, 0.3)):
    folder = write_run(tmp_path / f'run{i}', seed=5)
    config = files.read_config(folder) | {'learning_rate': rate}
    (folder / 'config.json').write_text(json.dumps(config))
  write_run(tmp_path / 'again', seed=5)
  config = (tmp_path / 'run1' / 'config.json').read_text()
  (tmp_path / 'again' / 'config.json').write_text(config)
  runs = read_runs([tmp_path / name for name in ('run0', 'run1', 'again', 'run0')])
  assert [run.label for run in runs] == [
    'fesem(2), learning_rate=0.1',
    'fesem(2), learning_rate=0.3, run1',
    'fesem(2), learning_rate=0.3, again',
  ]


def test_rounds_are_those_that_a_run_went_on_to(tmp_path):
  for name in ('run', 'on', 'open'):
    path = write_run(tmp_path / name, finished=name != 'open') / 'config.json'
    config = json.loads(path.read_text()) | {'rounds': ROUNDS if name == 'run' else 2}
    path.write_text(json.dumps(config))
  read = [read_runs([tmp_path / name])[0] for name in ('run', 'on', 'open')]
  assert [run.config['rounds'] for run in read] == [ROUNDS, ROUNDS, ROUNDS - 1]
  assert read[2].status == f'not finished: round {ROUNDS - 1}'
  assert 'rounds=' not in read_runs([tmp_path / 'run', tmp_path / 'on'])[1].label


def test_runs_that_tuned_are_left_out(tmp_path):
  write_run(tmp_path / 'fed_avg' / 'seed0', 'fed_avg', clusters=0)
  write_run(tmp_path / 'tune' / 'fed_avg' / '0.1' / 'seed9', 'fed_avg', clusters=0)
  assert [run.title for run in read_runs([tmp_path])] == ['fed_avg, seed 0']


@pytest.mark.parametrize(
  ('folders', 'options', 'subject'),
  [
    ([], {}, 'workdirs'),
    (['empty'], {}, 'empty'),
    (['run'], {'reference': 'x'}, 'reference'),
    (['run'], {'report': 'first'}, 'report'),
    (['run', 'other'], {}, 'workdirs'),
    (['damaged'], {}, 'summary.json'),
  ],
)
def test_what_cannot_be_reported_is_refused(tmp_path, folders, options, subject):
  (tmp_path / 'empty').mkdir()
  write_run(tmp_path / 'run')
  write_run(tmp_path / 'other', task=REGRESSION)
  (write_run(tmp_path / 'damaged') / 'summary.json').write_text('{')
  with pytest.raises(UserError, match=subject):
    page([tmp_path / name for name in folders], tmp_path, **options)


def test_a_summary_and_records_may_lack_figures(tmp_path):
  folder = write_run(tmp_path / 'run')
  records = files.read_metrics(folder / 'metrics.jsonl')
  records[0] |= {'bytes_up': 'x', 'seconds': None}
  lines = [json.dumps(record) for record in records]
  (folder / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
  assert page(folder, tmp_path)


def test_a_run_that_ended_early_says_why(tmp_path):
  path = write_run(tmp_path / 'run') / 'summary.json'
  ended = {'ended': '<b>enough</b>'}
  path.write_text(json.dumps(json.loads(path.read_text()) | ended))
  text = page(path.parent, tmp_path)
  assert f'{ROUNDS} rounds, ended: {html.escape("<b>enough</b>")}' in text
  assert '<b>enough' not in text


def test_bytes_are_counted_as_the_run_says_them(tmp_path):
  path = write_run(tmp_path / 'run') / 'summary.json'
  sent = {'costs': {'bytes_up': 65_900, 'bytes_down': 999_999}}
  path.write_text(json.dumps(json.loads(path.read_text()) | sent))
  text = page(tmp_path / 'run', tmp_path)
  assert '65.9 kB' in text
  assert '1 MB' in text


def test_the_library_is_cached(tmp_path, monkeypatch):
  import vl_convert

  made = []

  def bundle(text):
    made.append(text)
    return 'drawing'

  monkeypatch.setattr(vl_convert, 'javascript_bundle', bundle)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  for _ in range(2):
    assert gzip.decompress(library.compressed()) == b'drawing'
  assert len(made) == 1


def test_the_binary_writes_a_page(comparison, tmp_path):
  done = call('report', comparison, '--output=out/all.html', cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  assert done.stdout == 'out/all.html\n'
  text = (tmp_path / 'out' / 'all.html').read_text()
  assert len(held(text)['runs']) == 6
  done = call('report', cwd=tmp_path)
  assert done.returncode == 1
