// Figures over rounds, by method and seed.

const seedText = (seed) => (seed === null ? 'no seed' : `seed ${seed}`);

function checkboxes(id, values, text, swatch) {
  at(id).replaceChildren(...values.map((value, i) => {
    const box = element('input', {type: 'checkbox', checked: '', value: i});
    box.addEventListener('change', drawCurves);
    return element('label', {}, box, ...(swatch ? [swatch(i)] : []), text(value));
  }));
}

// A line with its marker, as the figure draws it.
function swatch(i) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('width', 26);
  svg.setAttribute('height', 14);
  svg.setAttribute('aria-hidden', 'true');
  const path = (d, attributes) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    made.setAttribute('d', d);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    svg.append(made);
  };
  path('M0,7H26', {stroke: colorOf(i), 'stroke-width': 2, 'stroke-dasharray': dashOf(i)});
  path(MARKS[shapeOf(i)], {fill: colorOf(i), transform: 'translate(13,7)'});
  return svg;
}

const MARKS = {
  circle: 'M4,0A4,4,0,1,1,-4,0A4,4,0,1,1,4,0Z', square: 'M-4,-4H4V4H-4Z',
  diamond: 'M-5,0L0,-5L5,0L0,5Z', 'triangle-up': 'M-5,4L0,-5L5,4Z',
  'triangle-down': 'M-5,-4L0,5L5,-4Z',
  cross: 'M-5,-2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z', 'triangle-right': 'M-4,-5L5,0L-4,5Z',
  'triangle-left': 'M4,-5L-5,0L4,5Z',
};

function startCurves() {
  const {figures, axes} = DATA.curves;
  options('curve-figure', figures.map((f, i) => [i, f.percent ? `${f.title} (%)` : f.title]));
  // A run that was measured once, at its end, has curves of its training.
  const long = figures.findIndex((f) => DATA.curves.runs.some(
    (held) => held.series[f.key]?.[1].length > 1));
  at('curve-figure').value = Math.max(long, 0);
  options('curve-axis', [['rounds', 'rounds'], ...axes.map((name) => [name, name])]);
  const seeds = [...new Set(DATA.runs.map((r) => r.seed))];
  if (seeds.length > 1 && DATA.runs.length > 12) at('curve-seeds').value = 'mean';
  checkboxes('curve-methods', DATA.labels, (label) => label, swatch);
  checkboxes('curve-seed-list', seeds, seedText);
  for (const id of ['curve-figure', 'curve-axis', 'curve-seeds', 'curve-from', 'curve-to']) {
    at(id).addEventListener('change', drawCurves);
  }
  at('curve-axis').addEventListener('change', forgetRange);
  at('curve-all').addEventListener('click', forgetRange);
}

function forgetRange() {
  at('curve-from').value = at('curve-to').value = '';
  drawCurves();
}

const chosen = (id) => [...at(id).querySelectorAll('input')].map((box) => box.checked);

function drawCurves() {
  const figure = DATA.curves.figures[Number(at('curve-figure').value)];
  if (!figure) return Promise.resolve(clear('curve-chart'));
  const axis = at('curve-axis').value, mean = at('curve-seeds').value === 'mean';
  const methods = chosen('curve-methods'), seeds = chosen('curve-seed-list');
  const known = [...new Set(DATA.runs.map((r) => r.seed))];
  const rows = [];
  DATA.curves.runs.forEach((held, i) => {
    const {label, seed} = DATA.runs[i];
    const series = held.series[figure.key];
    const below = axis === 'rounds' ? held.rounds : held.axes[axis];
    if (!series || !below || !methods[label] || !seeds[known.indexOf(seed)]) return;
    const [places, values] = series;
    values.forEach((value, j) => {
      const place = places ? places[j] : j;
      const y = figure.percent && value !== null ? 100 * value : value;
      rows.push({i, label, method: DATA.labels[label], seed: seedText(seed),
        round: held.rounds[place], x: below[place], y, j, of: values.length});
    });
  });
  return draw('curve-chart', curveSpec(mean ? averaged(rows) : rows, figure, axis, mean),
    rows.length);
}

// Mean and sample standard deviation of the seeds of each method, round by round; a gap
// where a seed is not finite, or ends. Rounds that only some of the seeds have that go on
// are left out, as the last one of a seed that ended between two evaluations.
function averaged(rows) {
  const groups = new Map(), last = new Map();
  for (const row of rows) {
    const key = `${row.label} ${row.round}`;
    groups.set(key, [...(groups.get(key) || []), row]);
    last.set(row.i, {label: row.label, round: Math.max(last.get(row.i)?.round ?? 0, row.round)});
  }
  const going = ({label, round}) => [...last.values()]
    .filter((run) => run.label === label && run.round >= round).length;
  const shared = [...groups.values()].filter((group) => group.length === going(group[0]));
  return shared.map((group) => {
    const average = (f) => group.reduce((sum, row) => sum + f(row), 0) / group.length;
    const seed = `mean of ${group.length} seeds`;
    const i = `${group[0].label} ${group.length}`;  // A line for each number of seeds.
    if (group.some((row) => row.y === null)) {
      return {...group[0], i, x: average((row) => row.x), y: null,
        low: null, high: null, seed};
    }
    const y = average((row) => row.y);
    const spread = group.length < 2 ? 0
      : Math.sqrt(group.reduce((sum, row) => sum + (row.y - y) ** 2, 0) / (group.length - 1));
    return {...group[0], i, x: average((row) => row.x), y,
      low: y - spread, high: y + spread, seed};
  });
}

function limits() {
  const [from, to] = ['curve-from', 'curve-to'].map((id) => at(id).value);
  const found = {};
  if (from !== '') found.domainMin = Number(from);
  if (to !== '') found.domainMax = Number(to);
  return found;
}

function curveSpec(rows, figure, axis, mean) {
  const range = limits();
  const inside = rows.filter((r) => r.x >= (range.domainMin ?? -Infinity)
    && r.x <= (range.domainMax ?? Infinity));
  const domain = DATA.labels.map((_, i) => i);
  const scale = (of) => ({domain, range: domain.map(of)});
  const color = {field: 'label', type: 'nominal', legend: null, scale: scale(colorOf)};
  const titles = {rounds: 'Round', seconds: 'Seconds of training',
    gigabytes: 'Gigabytes sent', 'simulated seconds': 'Simulated seconds of rounds'};
  const x = {field: 'x', type: 'quantitative', title: titles[axis],
    scale: {zero: false, nice: false, ...range},
    ...(axis === 'rounds' ? {axis: {tickMinStep: 1, format: 'd'}} : {})};
  const y = {field: 'y', type: 'quantitative', scale: {zero: false},
    title: figure.percent ? `${figure.title} (%)` : figure.title};
  const tooltip = [{field: 'method', title: 'method'}, {field: 'seed', title: 'seed'},
    {field: 'round', title: 'round'}, {field: 'x', title: axis, format: '.5~g'},
    {field: 'y', title: figure.title, format: '.5~g'}].filter((f) => f.title !== 'rounds');
  const few = `datum.of <= 40 || datum.j % ceil(datum.of / 40) === 0`;
  const layer = [
    {mark: {type: 'line', strokeWidth: 1.8, clip: true},
      encoding: {color, detail: {field: 'i'}, opacity: {value: mean ? 1 : 0.75},
        strokeDash: {field: 'label', type: 'nominal', legend: null, scale: scale(dashOf)}}},
    {transform: [{filter: few}], mark: {type: 'point', filled: true, size: 34, clip: true},
      encoding: {color, tooltip, opacity: {value: 0.9},
        shape: {field: 'label', type: 'nominal', legend: null, scale: scale(shapeOf)}},
      params: [{name: 'view', select: {type: 'interval', encodings: ['x', 'y'],
        zoom: 'wheel![event.ctrlKey || event.metaKey]'}, bind: 'scales'}]},
  ];
  if (mean) {
    layer.unshift({mark: {type: 'area', opacity: 0.18, clip: true},
      encoding: {color, detail: {field: 'i'}, y: {...y, field: 'low'}, y2: {field: 'high'}}});
  }
  return {description: `${figure.title} over ${axis}`, height: isNarrow() ? 280 : 400,
    data: {values: inside}, encoding: {x, y}, layer};
}
