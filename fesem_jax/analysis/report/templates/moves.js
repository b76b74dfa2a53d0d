// Moves between clusters: flows of all clients.

const counted = (number) => number.toLocaleString('en');

function drawFlows(held) {
  const flows = held.moves?.flows;
  at('move-table').replaceChildren();
  if (!flows) return Promise.resolve(clear('flow-chart'));
  showLargest(flows, held.names);
  const {bands, blocks} = laidOut(flows, held.names);
  const last = flows.rounds.length - 1;
  const x = {type: 'quantitative', title: 'Round', scale: {domain: [-0.25, last + 0.25]},
    axis: {values: flows.rounds.map((_, i) => i), grid: false,
      labelExpr: `${JSON.stringify(flows.rounds)}[datum.value]`}};
  const y = {field: 'low', type: 'quantitative', axis: null, scale: {zero: true, nice: false}};
  const color = clusterColor(held.names, 'cluster');
  const name = (place, align, dx) => ({
    transform: [{filter: `datum.place === ${place}`}],
    mark: {type: 'text', align, dx, fontSize: 12},
    encoding: {x: {field: 'place', type: 'quantitative'}, y: {field: 'middle', type: 'quantitative'},
      text: {field: 'cluster', type: 'nominal'}},
  });
  return draw('flow-chart', {
    description: 'Flows of clients between clusters', height: isNarrow() ? 240 : 320,
    layer: [
      {data: {values: bands}, mark: {type: 'area'},
        encoding: {x: {...x, field: 'x'}, y, y2: {field: 'high'}, detail: {field: 'band'}, color,
          opacity: {condition: {test: 'datum.moved', value: 0.8}, value: 0.2},
          tooltip: [{field: 'rounds'}, {field: 'cluster', title: 'from cluster'},
            {field: 'to', title: 'to cluster'}, {field: 'clients'}, {field: 'names'}]}},
      {data: {values: blocks},
        layer: [
          {mark: {type: 'rect'},
            encoding: {x: {...x, field: 'from'}, x2: {field: 'until'}, y, y2: {field: 'high'}, color,
              tooltip: [{field: 'round'}, {field: 'cluster'}, {field: 'clients'}]}},
          name(0, 'right', -8), name(last, 'left', 8)]}],
  }, bands.length);
}

// The blocks of the clusters, and the bands between them.
function laidOut({rounds, sizes, lows, links}, names) {
  const half = 0.03;
  const blocks = sizes.flatMap((row, place) => row.flatMap((clients, k) => {
    const low = lows[place][k];
    return clients ? [{place, from: place - half, until: place + half, round: rounds[place],
      cluster: names[k], clients, low, high: low + clients, middle: low + clients / 2}] : [];
  }));
  const bands = links.flatMap(([place, from, to, clients, named, start, end], band) => {
    const shown = named.join(', ') + (named.length < clients ? ', ...' : '');
    const row = {band, cluster: names[from], to: names[to], clients, moved: from !== to,
      names: named.length ? shown : undefined, rounds: `${rounds[place]} to ${rounds[place + 1]}`};
    const steps = from === to && start === end ? 1 : 16;
    return Array.from({length: steps + 1}, (_, i) => {
      const t = i / steps, share = t * t * (3 - 2 * t), low = start + share * (end - start);
      return {...row, x: place + half + t * (1 - 2 * half), low, high: low + clients};
    });
  });
  // Clients that move are drawn above those that stay.
  bands.sort((a, b) => a.moved - b.moved);
  return {bands, blocks};
}

function showLargest({rounds, links}, names) {
  const moved = links.filter(([, from, to]) => from !== to).sort((a, b) => b[3] - a[3]);
  const rows = moved.slice(0, 10).map(([place, from, to, clients, named]) => [
    `${rounds[place]} to ${rounds[place + 1]}`, names[from], names[to], clients,
    named.join(', ') + (named.length < clients ? ', ...' : '')]);
  const caption = moved.length > rows.length ? `The ${rows.length} largest of ${moved.length} moves`
    : 'Moves';
  const table = tableOf(caption, ['rounds', 'from cluster', 'to cluster', 'clients', 'names'], rows);
  at('move-table').replaceChildren(element('div', {class: 'wide', tabindex: 0, role: 'region',
    'aria-label': 'Largest moves'}, table));
}

function drawMoves(held) {
  const run = DATA.curves.runs[held.run], note = at('move-note');
  if (held.moves) {
    const {moved, of, flows} = held.moves;
    note.textContent = moved ? `${counted(moved)} of ${counted(of)} clients moved at least once between the recorded rounds.`
      + (flows ? ' Bands are clients from one round to the next that is shown; pale bands stay '
        + 'in their cluster. Names stand under the pointer.' : '')
      : `None of ${counted(of)} clients moved in the recorded rounds.`;
    return Promise.resolve(clear('move-chart'));
  }
  if (!held.moves_by_round) {
    note.textContent = 'The run has no record of moves.';
    return Promise.resolve(clear('move-chart'));
  }
  const rows = held.moves_by_round.map(([round, moved]) =>
    ({round, from: round - 0.4, to: round + 0.4, moved}));
  note.textContent = rows.length ? 'Clients that moved to another cluster, by round. A run with '
    + '--client_metrics_every=1 shows who moved, and where to.'
    : 'No client moved in the recorded rounds.';
  if (!rows.length) return Promise.resolve(clear('move-chart'));
  return draw('move-chart', {
    description: 'Clients that moved, by round', height: 180, data: {values: rows},
    mark: {type: 'rect', color: colorOf(0)},
    encoding: {
      x: {field: 'from', type: 'quantitative', title: 'Round',
        scale: {nice: false, domain: [run.rounds[0] - 0.5, run.rounds.at(-1) + 0.5]},
        axis: {tickMinStep: 1, format: 'd', grid: false}},
      x2: {field: 'to'},
      y: {field: 'moved', type: 'quantitative', title: 'Clients that moved', axis: {tickMinStep: 1}},
      y2: {datum: 0},
      tooltip: [{field: 'round'}, {field: 'moved', title: 'clients'}]},
  }, rows.length);
}
