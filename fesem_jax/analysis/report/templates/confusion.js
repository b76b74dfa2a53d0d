// Which classes the deployed models take for others, by cluster.

const heldConfusion = () => DATA.confusion[Number(at('confusion-run').value)];

function startConfusion() {
  const there = DATA.confusion.length > 0;
  present('confusion', there);
  if (!there) return;
  options('confusion-run', DATA.confusion.map((held, i) => [i, DATA.runs[held.run].title]));
  at('confusion-run').addEventListener('change', () => { chooseCluster(); drawConfusion(); });
  at('confusion-cluster').addEventListener('change', drawConfusion);
  // The first run with clusters says most.
  at('confusion-run').value = Math.max(0, DATA.confusion.findIndex((h) => h.clusters.length));
  chooseCluster();
}

function chooseCluster() {
  const {clusters} = heldConfusion();
  options('confusion-cluster', [['', 'all clients'],
    ...clusters.map((k, i) => [i, `clients of cluster ${k}`])]);
  at('confusion-cluster').parentElement.hidden = !clusters.length;
}

function drawConfusion() {
  if (!DATA.confusion.length) return Promise.resolve();
  const {names, counts, bad, measured_on: kind} = heldConfusion(), chosen = at('confusion-cluster').value;
  const used = chosen === '' ? counts : [counts[Number(chosen)]];
  const total = names.map((_, i) => names.map((_, j) =>
    used.reduce((sum, matrix) => sum + matrix[i][j], 0)));
  const sum = (row) => row.reduce((a, b) => a + b, 0);
  const all = sum(total.map(sum)), right = sum(total.map((row, i) => row[i]));
  at('confusion-note').textContent = `The deployed models classify ${right.toLocaleString('en')} of `
    + `${all.toLocaleString('en')} ${kind} examples right (${(100 * right / all).toFixed(1)} %). `
    + `Rows are true classes; colors are shares of a row.${bad ? ' Bad clients count, too.' : ''}`;
  const rows = total.flatMap((row, i) => row.flatMap((examples, j) => (sum(row)
    ? [{'true': names[i], predicted: names[j], examples, share: 100 * examples / sum(row)}] : [])));
  const axis = {labelOverlap: true, labelLimit: 90};
  const y = {field: 'true', type: 'nominal', sort: names, scale: {domain: names}, title: 'True class', axis};
  const x = {field: 'predicted', type: 'nominal', sort: names, scale: {domain: names},
    title: 'Predicted class', axis: {...axis, labelAngle: names.some((n) => n.length > 2) ? -90 : 0}};
  return draw('confusion-chart', {
    description: 'Predicted by true classes', height: Math.min(560, 80 + 26 * names.length),
    data: {values: rows},
    encoding: {x, y},
    layer: [
      {mark: {type: 'rect'}, encoding: {
        color: {field: 'share', type: 'quantitative', title: 'share (%)', legend: gradientSide(),
          scale: {scheme: 'viridis', domain: [0, 100]}},
        tooltip: [{field: 'true', title: 'true class'}, {field: 'predicted', title: 'predicted class'},
          {field: 'examples'}, {field: 'share', title: 'share (%)', format: '.1f'}]}},
      ...(names.length > 15 || isNarrow() ? [] : [{
        transform: [{filter: 'datum.examples > 0'}], mark: {type: 'text', fontSize: 11},
        encoding: {text: {field: 'examples'},
          color: {value: '#ffffff', condition: {test: 'datum.share > 60', value: '#000000'}}}}])],
  }, rows.length);
}
