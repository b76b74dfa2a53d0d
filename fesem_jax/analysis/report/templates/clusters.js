// The clusters of a run: sizes over rounds.

function startClusters() {
  const there = DATA.clusters.length > 0;
  present('clusters', there);
  if (!there) return;
  options('cluster-run', DATA.clusters.map((held, i) => [i, DATA.runs[held.run].title]));
  at('cluster-run').addEventListener('change', drawClusters);
}

function drawClusters() {
  if (!DATA.clusters.length) return Promise.resolve();
  const held = DATA.clusters[Number(at('cluster-run').value)];
  return drawSizes(held);
}

function drawSizes(held) {
  const rows = held.rounds.flatMap((round, i) => {
    let below = 0;
    return held.names.map((cluster, k) => {
      const size = held.sizes[i][k], low = below;
      below += size;
      return {round, from: round - 0.5, to: (held.rounds[i + 1] ?? round + 1) - 0.5, cluster,
        size, low, high: below};
    });
  });
  return draw('size-chart', {
    description: 'Clients of each cluster over rounds', height: isNarrow() ? 200 : 240,
    data: {values: rows},
    mark: {type: 'rect', stroke: isDark() ? '#14181d' : '#ffffff', strokeWidth: 0.5},
    encoding: {
      x: {field: 'from', type: 'quantitative', title: 'Round', scale: {nice: false, zero: false},
        axis: {tickMinStep: 1, format: 'd', grid: false}},
      x2: {field: 'to'},
      y: {field: 'low', type: 'quantitative', title: 'Clients', axis: {tickMinStep: 1}},
      y2: {field: 'high'},
      color: clusterColor(held.names, 'cluster'),
      tooltip: [{field: 'round'}, {field: 'cluster'}, {field: 'size', title: 'clients'}]},
  }, rows.length);
}

function clusterColor(names, field) {
  return {field, type: 'nominal', title: 'cluster',
    legend: {...legendSide(), symbolType: 'square', symbolOpacity: 1},
    scale: {domain: names, range: names.map((_, k) => colorOf(k))}};
}
