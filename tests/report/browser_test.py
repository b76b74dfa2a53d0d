"""Pages in a real browser: nothing is complained of, every chart is drawn."""

import html
import json
import re
import shutil
import subprocess

import pytest

import fesem_jax as fj
from tests.support.reported import write_comparison, write_run

pytest.importorskip('fesem_jax.analysis.report.content')

_NAMES = ('chromium-headless-shell', 'chromium', 'chromium-browser', 'google-chrome')
_BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
pytestmark = pytest.mark.skipif(
  _BROWSER is None, reason=f'no browser: none of {", ".join(_NAMES)} is installed'
)

# What a test does once the charts are drawn, and tells as JSON in an attribute.
_DRIVER = """<script>
addEventListener('load', async () => {
  const root = document.documentElement;
  const wait = (done) => new Promise((go) => {
    const look = () => done() ? go() : setTimeout(look, 20);
    look();
  });
  const marks = (name, kind) =>
    document.querySelectorAll(`#chart-${name} svg .mark-${kind} path`).length;
  const all = [...document.querySelectorAll('.chart')];
  const choose = async (name, place, value) => {
    const menu = document.querySelectorAll(`#chart-${name} select`)[place];
    const before = document.querySelector(`#chart-${name} svg`).innerHTML;
    menu.value = value;
    menu.dispatchEvent(new Event('change'));
    await wait(() => document.querySelector(`#chart-${name} svg`).innerHTML !== before);
  };
  await wait(() => all.every((chart) => chart.querySelector('svg path')));
  root.dataset.told = JSON.stringify(await (async () => { DRIVEN })());
});
</script></body>"""


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  folder = write_comparison(tmp_path_factory.mktemp('comparison'))
  return fj.write_report(folder, folder / 'page.html')


def driven(page, script, width=1400, *options):
  """What a script told in a page, and what the browser had to say."""
  copy = page.with_name(f'driven_{width}.html')
  before, _, after = page.read_text().rpartition('</body>')
  copy.write_text(before + _DRIVER.replace('DRIVEN', script) + after)
  command = [
    _BROWSER, '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
    '--disable-background-networking', f'--user-data-dir={page.parent / "browser"}',
    '--enable-logging=stderr', '--v=0', '--virtual-time-budget=30000',
    f'--window-size={width},900', '--dump-dom', *options, copy.as_uri(),
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True, timeout=120)
  console = [line for line in done.stderr.splitlines() if 'CONSOLE' in line]
  page_state = re.search(r' data-told="([^"]*)"', done.stdout)
  assert page_state, (console, done.stderr[-2000:])
  return json.loads(html.unescape(page_state[1])), console


_SEEN = """
  const style = getComputedStyle(document.body);
  const text = document.querySelector('#chart-curves svg text');
  return {
    points: [marks('curves', 'symbol'), marks('clients', 'symbol')],
    lines: marks('curves', 'line'),
    figures: document.querySelectorAll('figure svg').length,
    wide: [root.scrollWidth, innerWidth],
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    colors: [style.color, getComputedStyle(text).fill],
  };
"""


@pytest.mark.parametrize(('width', 'dark'), [(1400, False), (480, True)])
def test_every_chart_is_drawn_without_a_complaint(page, width, dark):
  options = ['--blink-settings=preferredColorScheme=0'] if dark else []
  page_state, console = driven(page, _SEEN, width, *options)
  assert not console
  assert page_state['lines'] == 3
  # Two rounds of three methods; twelve clients; and what legends have.
  assert page_state['points'][0] >= 6
  assert page_state['points'][1] >= 12
  assert page_state['figures'] >= 5
  assert page_state['wide'][0] <= page_state['wide'][1]  # Nothing sticks out.
  assert page_state['dark'] == dark
  assert (
    page_state['colors'][0] == page_state['colors'][1]
  )  # Text is as legible in charts.


def test_menus_change_the_charts(page):
  page_state, console = driven(
    page,
    """
    const path = () => document.querySelector('#chart-curves .mark-line path')
      .getAttribute('d').split('L').length;
    const told = {before: path(), map: marks('clients', 'symbol')};
    await choose('curves', 0, 'train_loss');
    await choose('curves', 1, 'total_seconds');
    await choose('clients', 1, 'examples');
    return {...told, after: path(), examples: marks('clients', 'symbol')};
    """,
  )
  assert not console
  assert (page_state['before'], page_state['after']) == (2, 4)
  assert page_state['map'] - page_state['examples'] == 2  # They have no test examples.


def test_hostile_names_are_shown_and_not_run(tmp_path):
  name = '</script><img src=x onerror="document.title=1">'
  folder = write_run(tmp_path / 'run', names=[f'{name}{i}' for i in range(6)])
  path = fj.write_report(folder, tmp_path / 'page.html')
  page_state, console = driven(
    path,
    """
    return [document.title, marks('clients', 'symbol'), document.images.length];
    """,
  )
  assert not console
  assert page_state[0] == 'toy: fesem(2), seed 0'
  assert page_state[1] >= 6
  assert page_state[2] == 0
