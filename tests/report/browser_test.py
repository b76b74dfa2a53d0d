"""Pages in a real browser: nothing is complained of, every figure is drawn."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import fesem_jax as fj
from fesem_jax.analysis.report.runs import first_of_each_method, read_runs
from fesem_jax.utils.palette import PALETTE
from tests.support.reported import write_comparison, write_run

pytest.importorskip('vl_convert')

_NAMES = ('chromium-headless-shell', 'chromium', 'chromium-browser', 'google-chrome')
_BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
pytestmark = pytest.mark.skipif(
  _BROWSER is None, reason=f'no browser: none of {", ".join(_NAMES)} is installed'
)

# What a test does once the page is drawn, and tells as JSON in an attribute.
_DRIVER = """<script>
addEventListener('load', async () => {
  const root = document.documentElement;
  const until = async (done) => {
    while (!done()) await new Promise((go) => setTimeout(go, 20));
  };
  const at = (id) => document.getElementById(id);
  const drawn = (id) => until(() => at(id).dataset.drawn !== undefined);
  const choose = async (id, value, chart) => {
    at(id).value = value;
    at(id).dispatchEvent(new Event('change'));
    await drawn(chart);
  };
  await until(() => root.dataset.ready || !at('problem').hidden);
  root.dataset.told = JSON.stringify(await (async () => { DRIVEN })());
});
</script></body>"""

_FIGURES = (
  'curve-chart', 'client-chart', 'size-chart', 'label-chart', 'confusion-chart',
)  # fmt: skip


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  folder = write_comparison(tmp_path_factory.mktemp('comparison'))
  return fj.write_report(folder, folder / 'page.html')


def driven(page, script, width=1400, *options):
  """What a script told in a page, and what the browser had to say."""
  copy = page.with_name(f'driven_{width}.html')
  text = page.read_text().replace('</body>', _DRIVER.replace('DRIVEN', script))
  copy.write_text(text)
  command = [
    _BROWSER, '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
    '--disable-background-networking', f'--user-data-dir={page.parent / "browser"}',
    '--enable-logging=stderr', '--v=0', '--virtual-time-budget=30000',
    f'--window-size={width},900', '--dump-dom',
    *options, copy.as_uri(),
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True, timeout=120)
  said = [line for line in done.stderr.splitlines() if 'CONSOLE' in line]
  told = re.search(r' data-told="([^"]*)"', done.stdout)
  assert told, (said, done.stderr[-2000:])
  return json.loads(html.unescape(told[1])), said


_COUNTS = """
  const found = {};
  for (const place of document.querySelectorAll('.figure')) {
    const marks = place.querySelectorAll('svg .mark-symbol path, svg .mark-rect path');
    const line = place.querySelectorAll('svg .mark-line path');
    found[place.id] = [Number(place.dataset.drawn), marks.length, line.length];
  }
"""


@pytest.mark.parametrize('width', [1400, 480])
def test_every_figure_is_drawn_without_a_complaint(page, width):
  told, said = driven(
    page,
    _COUNTS + 'return {found, wide: [root.scrollWidth, innerWidth]};',
    width,
  )
  assert not said
  assert set(told['found']) == set(_FIGURES)
  assert told['found']['curve-chart'] == [12, 12, 6]  # 6 runs, two rounds of each.
  assert told['found']['client-chart'][0] == 12
  assert told['found']['size-chart'][1] >= 8  # 4 rounds, 2 clusters, and the legend.
  assert told['found']['label-chart'][1] >= 120
  assert told['found']['confusion-chart'] == [100, 101, 0]  # With its legend.
  assert told['wide'][0] <= told['wide'][1]  # Nothing sticks out.


def test_confusion_is_of_the_cluster_that_is_chosen(page):
  told, said = driven(
    page,
    """
    const of = async (run, cluster) => {
      await choose('confusion-run', run, 'confusion-chart');
      await choose('confusion-cluster', cluster, 'confusion-chart');
      return at('confusion-note').textContent.match(/[0-9]+ of [0-9]+/)[0];
    };
    return [await of(0, ''), await of(1, ''), await of(1, '1')];
    """,
  )
  assert not said
  runs = read_runs([page.parent])
  order = first_of_each_method(runs)
  first, second = (runs[i].portrait['confusion'] for i in order[:2])
  assert told == [
    f'{c.trace(axis1=1, axis2=2).sum()} of {c.sum()}'
    for c in (first, second, second[1:])
  ]


def test_controls_change_the_figures(page):
  told, said = driven(
    page,
    """
    const count = (marks) => at('curve-chart').querySelectorAll(`svg ${marks}`).length;
    const lines = () => count('.mark-line path');
    const text = (id) => at(id).textContent;
    const told = {before: lines()};
    at('curve-methods').querySelector('input').click();
    await drawn('curve-chart');
    told.without = lines();
    await choose('curve-seeds', 'mean', 'curve-chart');
    told.mean = lines();
    told.bands = count('.mark-area path');
    await choose('curve-figure', 2, 'curve-chart');
    await choose('curve-axis', 'seconds', 'curve-chart');
    told.axes = text('curve-chart');
    await choose('curve-from', '1.5', 'curve-chart');
    told.ranged = Number(at('curve-chart').dataset.drawn);
    await choose('client-find', 'c07', 'client-chart');
    told.found = text('client-found');
    await choose('client-zoom', '1', 'client-chart');
    told.zoomed = Number(at('client-chart').dataset.drawn);
    await choose('client-view', 'size deployed_accuracy', 'client-chart');
    told.view = text('client-chart');
    await choose('client-run', '0', 'client-chart');
    const worst = [...at('worst').querySelectorAll('tbody tr')];
    told.worst = worst.map((row) => row.cells[0].textContent);
    told.heads = at('worst').querySelectorAll('th').length;
    await choose('theme', 'dark', 'curve-chart');
    told.paper = getComputedStyle(document.body).backgroundColor;
    return told;
    """,
  )
  assert not said
  assert (told['before'], told['without'], told['mean'], told['bands']) == (6, 4, 2, 2)
  assert 'Deployed micro F1 (%)' in told['axes']
  assert 'Seconds of training' in told['axes']
  assert 'c07' in told['found']
  assert 'turned' in told['found']
  assert told['zoomed'] == 6
  assert 'Training examples' in told['view']
  assert told['worst'] == ['c02', 'c03', 'c04', 'c05', 'c06']
  assert told['heads'] == 6  # fed_avg has no clusters.
  assert told['paper'] == 'rgb(20, 24, 29)'


def test_curves_and_their_means_have_gaps_where_a_seed_is_infinite(tmp_path):
  for seed, losses in ((0, [4, 3, 2, 1, 1]), (1, [4, 3, np.inf, 1, 1])):
    folder = tmp_path / 'a' / f'seed{seed}'
    write_run(folder, 'fed_avg', seed, clusters=0, finished=False)
    lines = [{'round': i, 'train_loss': x} for i, x in enumerate(losses, 1)]
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in lines))
  told, said = driven(
    fj.write_report(tmp_path, tmp_path / 'page.html'),
    """
    const all = (what) => [...at('curve-chart').querySelectorAll(`svg ${what} path`)];
    const pieces = () => all('.mark-line')
      .map((p) => p.getAttribute('d').match(/M/g).length);
    const marks = () => all('.mark-symbol').length;
    const told = [pieces(), marks()];
    await choose('curve-seeds', 'mean', 'curve-chart');
    const [band] = all('.mark-area');
    return [...told, pieces(), marks(), band.getAttribute('d').match(/M/g).length];
    """,
  )
  assert not said
  assert told == [[1, 2], 9, [2], 4, 2]


def test_a_page_is_for_keyboards_and_color_blind_readers(page):
  told, _ = driven(
    page,
    """
    const all = (what) => [...document.querySelectorAll(what)];
    const controls = all('main select, main input, main button');
    const named = (c) => c.closest('label') || c.textContent.trim();
    const lines = all('#curve-chart svg .mark-line path');
    const symbols = all('#curve-chart svg .mark-symbol path');
    return {
      controls: controls.length,
      unreachable: controls.filter((c) => c.tabIndex < 0 || !named(c)).length,
      scrolled: all('.wide').filter((w) => w.tabIndex !== 0
        || !w.getAttribute('aria-label')).length,
      colors: [...new Set(lines.map((p) => p.getAttribute('stroke').toUpperCase()))],
      marks: new Set(symbols.map((p) => p.getAttribute('d'))).size,
      described: all('.figure').every((f) => f.getAttribute('aria-label')),
    };
    """,
  )
  assert told['controls'] > 10
  assert (told['unreachable'], told['scrolled']) == (0, 0)
  assert set(told['colors']) <= set(PALETTE)
  assert len(told['colors']) == told['marks'] == 3
  assert told['described']


def test_hostile_names_are_shown_and_not_run(tmp_path):
  name = '</script><img src=x onerror="document.title=1">'
  folder = write_run(tmp_path / 'run', names=[f'{name}{i}' for i in range(6)])
  path = fj.write_report(folder, tmp_path / 'page.html')
  told, said = driven(
    path, "return [document.title, at('worst').textContent, document.images.length];"
  )
  assert not said
  assert told[0] == 'fesem(2), seed 0'
  assert f'{name}2' in told[1]
  assert told[2] == 0


def test_a_run_without_clusters_or_clients_says_so(tmp_path):
  folder = write_run(tmp_path / 'run', 'fed_avg', clusters=0, finished=False)
  path = fj.write_report(folder, tmp_path / 'page.html')
  told, said = driven(
    path, "return [...document.querySelectorAll('.absent')].map((p) => p.hidden);"
  )
  assert not said
  assert told == [False, False, False, False]
