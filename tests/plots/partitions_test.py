"""The figure of several partitions shows what clients have."""

import numpy as np
from matplotlib import pyplot as plt

from fesem_jax import plots


def test_panels_show_shares_sizes_and_clusters():
  counts = np.array([[4, 0], [1, 3], [0, 10], [5, 5]])
  panels = {
    'plain': plots.DealtClients(counts),
    'groups': plots.DealtClients(counts, np.array([1, 0, 1, 0]), ('here', 'there')),
  }
  figure = plots.compared_partitions(panels, 'title')
  heat, bars, heat_of_groups, bars_of_groups = figure.axes[:4]
  assert heat.get_title() == 'plain\nlabel skew 0.31'
  np.testing.assert_allclose(
    heat.images[0].get_array(), [[1, 0.25, 0, 0.5], [0, 0.75, 1, 0.5]]
  )
  assert [bar.get_height() for bar in bars.patches] == [4, 4, 10, 10]
  assert bars.get_legend() is None
  # In the order of clusters: clients 1, 3, then 0, 2.
  np.testing.assert_allclose(
    heat_of_groups.images[0].get_array(), [[0.25, 0.5, 1, 0], [0.75, 0.5, 0, 1]]
  )
  looks = [bar.get_facecolor() for bar in bars_of_groups.patches]
  assert looks[0] == looks[1] != looks[2] == looks[3]
  named = [t.get_text() for t in bars_of_groups.get_legend().get_texts()]
  assert named == ['here', 'there']


def test_classes_have_their_names_beside_the_first_panel():
  few, many = (plots.DealtClients(np.ones((3, n), int)) for n in (2, 40))
  first, _, second = plots.compared_partitions(
    {'a': few, 'b': few}, 'title', ('cat', 'dog')
  ).axes[:3]
  assert [t.get_text() for t in first.get_yticklabels()] == ['cat', 'dog']
  assert not any(t.get_visible() for t in second.get_yticklabels())
  names = [f'name{i}' for i in range(40)]
  heat = plots.compared_partitions({'a': many}, 'title', names).axes[0]
  heat.figure.canvas.draw()
  places = heat.get_yticks()
  shown = [t.get_text() for t in heat.get_yticklabels()]
  assert shown == [names[int(i)] if 0 <= i < 40 else '' for i in places]


def test_a_panel_without_classes_names_none():
  dealt = plots.DealtClients(np.array([[4], [2]]), np.array([0, 1]))
  heat, bars = plots.compared_partitions({'iid': dealt}, 'title').axes[:2]
  assert heat.get_title() == 'iid'
  assert heat.get_ylabel() == ''
  assert len(heat.get_yticks()) == 0
  assert [bar.get_height() for bar in bars.patches] == [4, 2]


def test_many_clients_partitions_and_clusters_are_bounded():
  counts = np.random.default_rng(0).integers(0, 9, (500, 30))
  many = plots.DealtClients(counts, np.arange(500) % 50)
  figure = plots.compared_partitions({str(i): many for i in range(6)}, 'title')
  assert len(figure.axes) == 6 * 2 + 1
  bars = figure.axes[1]
  assert bars.get_xlabel() == '80 of 500 clients'
  assert len(bars.patches) == 80
  named = [t.get_text() for t in bars.get_legend().get_texts()]
  assert named[-1] == '42 others'


def test_settings_of_the_user_leave_the_layout_of_a_file(tmp_path):
  def saved(name, **settings):
    with plt.rc_context(settings):
      figure = plots.compared_partitions({'a': plots.DealtClients(np.eye(3))}, 'title')
      return plt.imread(plots.save(figure, tmp_path / name)[0])

  own = saved('own')
  for setting in ('figure.autolayout', 'figure.constrained_layout.use'):
    np.testing.assert_array_equal(saved(setting, **{setting: True}), own)
