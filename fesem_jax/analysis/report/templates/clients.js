// The clients of a run: points, a client by name, the worst and best, their labels.

const shownRun = () => DATA.clients.runs[Number(at('client-run').value)];
const federationOf = (held) => DATA.clients.federations[held.federation];

function figureTitle(name) {
  const [kind, ...rest] = name.split('_');
  const figure = DATA.figures.find((f) => f.name === rest.join('_'));
  const kinds = {deployed: 'Deployed', finetuned: 'Fine-tuned'};
  if (!kinds[kind]) return name.replaceAll('_', ' ');
  return `${kinds[kind]} ${figure ? figure.label : rest.join(' ')}`;
}

const isPercent = (name) => DATA.figures.some((f) => f.percent && name.endsWith(`_${f.name}`));

function startClients() {
  const there = DATA.clients.runs.length > 0;
  present('clients', there);
  present('labels', DATA.clients.federations.some((f) => f.labels));
  if (!there) return;
  options('client-run', DATA.clients.runs.map((held, i) => [i, DATA.runs[held.run].title]));
  at('client-run').addEventListener('change', () => { chooseClients(); drawClients(); });
  for (const id of ['client-view', 'client-color', 'client-zoom', 'client-find']) {
    at(id).addEventListener('change', drawClients);
  }
  // The first run with clusters says most.
  const best = DATA.clients.runs.findIndex((held) => held.cluster);
  at('client-run').value = Math.max(best, 0);
  chooseClients();
}

// What the chosen run has to show.
function chooseClients() {
  const held = shownRun(), all = federationOf(held), before = at('client-view').value;
  const names = Object.keys(held.figures);
  const first = `deployed_${DATA.figures[0].name}`, second = `finetuned_${DATA.figures[0].name}`;
  const views = held.map ? [['map', 'map of local models']] : [];
  for (const name of names) views.push([`size ${name}`, `${figureTitle(name)} by examples`]);
  if (held.figures[second]) {
    views.push([`pair ${first}`, `${figureTitle(second)} by ${figureTitle(first).toLowerCase()}`]);
  }
  options('client-view', views);
  if (views.some(([value]) => value === before)) at('client-view').value = before;
  const colored = at('client-color').value, colors = [];
  if (held.cluster) colors.push(['cluster', 'cluster']);
  if (all.truth) colors.push(['truth', 'true cluster']);
  for (const name of names) colors.push([name, figureTitle(name)]);
  options('client-color', colors);
  if (colors.some(([value]) => value === colored)) at('client-color').value = colored;
  options('client-zoom', [['', 'all clients'],
    ...(held.sizes || []).map((size, k) => [k, `cluster ${k} (${size})`])
      .filter((_, k) => held.sizes[k])]);
  at('client-zoom').parentElement.hidden = !held.cluster;
  showExtremes(held, all);
}

function clientRows(held, all) {
  return all.names.map((name, i) => {
    const row = {i, name, examples: all.examples[i], tested: all.test_examples[i]};
    if (held.cluster) row.cluster = held.cluster[i];
    if (held.cluster) row.size = held.sizes[held.cluster[i]];
    if (all.truth) row.truth = all.truth_names[all.truth[i]];
    if (all.honest) row.honest = all.honest[i] ? 'yes' : 'no';
    for (const [figure, values] of Object.entries(held.figures)) {
      row[figure] = values[i] !== null && isPercent(figure) ? 100 * values[i] : values[i];
    }
    return row;
  });
}

const unit = (name) => (isPercent(name) ? `${figureTitle(name)} (%)` : figureTitle(name));

function clientTooltip(held, all) {
  return [{field: 'name', title: 'client'},
    ...(held.cluster ? [{field: 'cluster', title: 'cluster'},
      {field: 'size', title: 'clients of it'}] : []),
    ...(all.truth ? [{field: 'truth', title: 'true cluster'}] : []),
    {field: 'examples', title: 'examples'}, {field: 'tested', title: `${held.measured_on} examples`},
    ...(all.honest ? [{field: 'honest', title: 'honest'}] : []),
    ...Object.keys(held.figures).map((f) => ({field: f, title: unit(f), format: '.4~g'}))];
}

// Clients whose name is the one given, else those whose names contain it.
function foundClients(rows) {
  const wanted = at('client-find').value.trim().toLowerCase();
  if (!wanted) return [];
  const same = rows.filter((row) => row.name.toLowerCase() === wanted);
  return same.length ? same : rows.filter((row) => row.name.toLowerCase().includes(wanted));
}

function drawClients() {
  if (!DATA.clients.runs.length) return Promise.resolve();
  const held = shownRun(), all = federationOf(held);
  const everyone = clientRows(held, all), found = foundClients(everyone);
  showFound(found, held, all);
  const [view, name] = at('client-view').value.split(' ');
  let rows = everyone;
  let x, y;
  if (view === 'map') {
    rows = held.map.clients.map((i, j) => ({...everyone[i], x: held.map.x[j], y: held.map.y[j]}));
    const [one, two] = held.map.shares;
    x = {field: 'x', title: `PC 1 (${Math.round(one)} %)`, axis: {labels: false, ticks: false, grid: false}};
    y = {field: 'y', title: `PC 2 (${Math.round(two)} %)`, axis: {labels: false, ticks: false, grid: false}};
  } else {
    const own = view === 'size' ? name : `finetuned_${DATA.figures[0].name}`;
    x = view === 'size' ? {field: 'examples', title: 'Training examples'}
      : {field: name, title: unit(name)};
    y = {field: own, title: unit(own)};
    rows = rows.filter((row) => row[own] !== null && row[x.field] !== null);
  }
  const shown = rows.length < held.count ? `${rows.length.toLocaleString('en')} of ` : '';
  at('client-note').textContent = `${shown}${held.count.toLocaleString('en')} clients`
    + (view === 'map' ? ', their local models by principal components' : '')
    + (DATA.clients.left_out ? `; ${DATA.clients.left_out} further runs are left out here` : '');
  if (at('client-zoom').value) {
    rows = rows.filter((row) => String(row.cluster) === at('client-zoom').value);
  }
  const wanted = new Set(found.map((row) => row.i));
  rows = rows.map((row) => ({...row, wanted: wanted.has(row.i)}));
  return Promise.all([draw('client-chart', clientSpec(rows, x, y, held, all), rows.length),
    drawLabels(held, all)]);
}

function clientSpec(rows, x, y, held, all) {
  const by = at('client-color').value, side = legendSide();
  const encoding = {
    x: {type: 'quantitative', scale: {zero: false, padding: 8}, ...x},
    y: {type: 'quantitative', scale: {zero: false, padding: 8}, ...y},
    tooltip: clientTooltip(held, all),
    opacity: {value: rows.length > 2000 ? 0.5 : 0.8},
  };
  if (by === 'cluster' || by === 'truth') {
    const domain = by === 'truth' ? all.truth_names : held.sizes.map((_, k) => k);
    encoding.color = {field: by, type: 'nominal', title: by === 'truth' ? 'true cluster' : 'cluster',
      scale: {domain, range: domain.map((_, k) => colorOf(k))}, legend: side};
  } else {
    encoding.color = {field: by, type: 'quantitative', title: unit(by), legend: gradientSide(),
      scale: {scheme: 'viridis'}};
  }
  const shape = all.truth && all.truth_names.length <= SHAPES.length ? 'truth'
    : !all.truth && held.cluster && held.sizes.length <= SHAPES.length ? 'cluster' : null;
  if (shape) {
    const domain = shape === 'truth' ? all.truth_names : held.sizes.map((_, k) => k);
    encoding.shape = {field: shape, type: 'nominal', scale: {domain, range: domain.map((_, k) => shapeOf(k))},
      title: shape === 'truth' ? 'true cluster' : 'cluster', legend: side};
  }
  const ring = {transform: [{filter: 'datum.wanted'}],
    mark: {type: 'point', size: 260, filled: false, strokeWidth: 3,
      color: isDark() ? '#ffffff' : '#000000'},
    encoding: {x: encoding.x, y: encoding.y}};
  const points = {mark: {type: 'point', filled: true, size: rows.length > 2000 ? 20 : 60}, encoding,
    params: [{name: 'view', bind: 'scales',
      select: {type: 'interval', zoom: 'wheel![event.ctrlKey || event.metaKey]'}}]};
  return {description: 'Clients as points', height: isNarrow() ? 300 : 440,
    data: {values: rows}, layer: rows.some((row) => row.wanted) ? [points, ring] : [points]};
}

function tableOf(caption, head, rows) {
  const cell = (name) => (value) => element(name, name === 'th' ? {scope: 'col'} : {},
    value === null || value === undefined ? '' : String(value));
  return element('table', {}, element('caption', {}, caption),
    element('thead', {}, element('tr', {}, ...head.map(cell('th')))),
    element('tbody', {}, ...rows.map((row) => element('tr', {}, ...row.map(cell('td'))))));
}

function inWords(value, figure) {
  if (value === null) return '';
  return figure.percent ? (100 * value).toFixed(1) : Number(value.toPrecision(4)).toString();
}

function fairnessOf(held, figure) {
  if (!held.fairness) return '';
  const [worst, deviation, jain] = held.fairness;
  return ` Mean of the worst tenth of the clients ${inWords(worst, figure)}, standard deviation `
    + `over clients ${inWords(deviation, figure)}, Jain's index ${jain.toFixed(3)} `
    + '(1 if all clients are equal).';
}

function showExtremes(held, all) {
  const figure = DATA.figures[0];
  at('extremes-note').textContent = `By deployed ${figure.label}${figure.percent ? ' in percent' : ''}, of ${held.of_honest ? 'honest ' : ''}clients with ${held.measured_on} examples; `
    + `${figure.higher ? 'higher' : 'lower'} is better.${fairnessOf(held, figure)}`
    + (held.of_one ? ` ${held.of_one} clients are measured on one example only.` : '');
  const head = ['client', 'examples', `${held.measured_on} examples`, 'cluster', 'true cluster', 'deployed', 'fine-tuned'];
  const kept = head.map((name) => (name !== 'cluster' || held.cluster)
    && (name !== 'true cluster' || all.truth));
  // The figures stand beside the name, where a narrow page shows them.
  const only = (row) => [0, 5, 6, 1, 2, 3, 4].filter((i) => kept[i]).map((i) => row[i]);
  for (const [i, id] of ['worst', 'best'].entries()) {
    const ties = (held.ties || [])[i];
    const caption = `${id === 'worst' ? 'Worst' : 'Best'} clients`
      + (ties ? ` (${ties} more are equal to the last one)` : '');
    const rows = (held[id] || []).map((row) => only([...row.slice(0, 5),
      inWords(row[5], figure), inWords(row[6], figure)]));
    at(id).replaceChildren(tableOf(caption, only(head), rows));
  }
}

function showFound(found, held, all) {
  const place = at('client-found'), wanted = at('client-find').value.trim();
  if (!wanted) return place.replaceChildren();
  if (!found.length) return place.replaceChildren(`No client is called ${wanted}.`);
  const fields = clientTooltip(held, all);
  const text = (value) => (typeof value === 'number' ? Number(value.toPrecision(4)) : value);
  const rows = found.slice(0, 10).map((row) => fields.map(({field}) => text(row[field])));
  const caption = found.length > 10 ? `10 of ${found.length} clients` : 'Found';
  const wide = element('div', {class: 'wide found', tabindex: 0, role: 'region',
    'aria-label': 'Clients found'}, tableOf(caption, fields.map((f) => f.title), rows));
  return place.replaceChildren(wide);
}

function drawLabels(held, all) {
  if (!all.labels) return Promise.resolve(clear('label-chart'));
  const {names, clients, shares} = all.labels;
  const group = (i) => (held.cluster ? held.cluster[i] : all.truth ? all.truth[i] : 0);
  const most = (row) => row.indexOf(Math.max(...row));
  const order = clients.map((i, j) => j).sort((a, b) =>
    group(clients[a]) - group(clients[b]) || most(shares[a]) - most(shares[b]));
  const rows = order.flatMap((j, place) => names.map((label, l) => ({
    place, label, share: shares[j][l], name: all.names[clients[j]],
    cluster: held.cluster ? held.cluster[clients[j]] : undefined,
    truth: all.truth ? all.truth_names[all.truth[clients[j]]] : undefined})));
  const sorted = held.cluster ? 'cluster' : all.truth ? 'true cluster' : 'their most frequent label';
  at('label-note').textContent = `Shares of labels in the training examples of `
    + `${clients.length < held.count ? `${clients.length} of ` : ''}`
    + `${held.count.toLocaleString('en')} clients, sorted by ${sorted}${held.cluster ? ` in ${DATA.runs[held.run].title}` : ''}.`;
  const tooltip = [{field: 'name', title: 'client'}, {field: 'label', title: 'label'},
    {field: 'share', title: 'share (%)', format: '.1f'},
    ...(held.cluster ? [{field: 'cluster', title: 'cluster'}] : []),
    ...(all.truth ? [{field: 'truth', title: 'true cluster'}] : [])];
  return draw('label-chart', {
    description: 'Shares of labels by client', height: Math.min(480, 60 + 18 * names.length),
    data: {values: rows},
    mark: {type: 'rect'},
    encoding: {
      x: {field: 'place', type: 'ordinal', title: `Clients, by ${sorted}`, axis: {labels: false, ticks: false}},
      y: {field: 'label', type: 'ordinal', sort: names, title: 'Label', axis: {labelOverlap: true}},
      color: {field: 'share', type: 'quantitative', title: 'share (%)', legend: gradientSide(),
        scale: {scheme: 'viridis', domainMin: 0}},
      tooltip},
  }, rows.length);
}
