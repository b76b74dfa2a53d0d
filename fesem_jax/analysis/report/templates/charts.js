// How every figure is drawn: size, colors of the page, and the record that it was drawn.

const SHAPES = ['circle', 'square', 'diamond', 'triangle-up', 'triangle-down', 'cross',
  'triangle-right', 'triangle-left'];
const DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3]];
const views = {};
let turns = 0;

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
}

const isNarrow = () => window.innerWidth < 760;

// Black is the paper's color in the dark.
function colorOf(i) {
  const color = DATA.palette[i % DATA.palette.length];
  return isDark() && color === '#000000' ? '#ffffff' : color;
}

const shapeOf = (i) => SHAPES[i % SHAPES.length];
const dashOf = (i) => DASHES[Math.floor(i / DATA.palette.length) % DASHES.length];

function look() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const text = {labelColor: of('--ink'), titleColor: of('--ink')};
  return {
    background: 'transparent', font: 'system-ui, DejaVu Sans, sans-serif',
    axis: {...text, gridColor: of('--line'), domainColor: of('--faint'),
      tickColor: of('--faint'), labelFontSize: 12, titleFontSize: 13, titleFontWeight: 500},
    legend: {...text, labelFontSize: 12, titleFontSize: 12, labelLimit: 220,
      symbolLimit: 24, symbolBaseFillColor: of('--faint'),
      symbolBaseStrokeColor: of('--faint')},
    view: {stroke: of('--line')}, title: {color: of('--ink')},
    text: {color: of('--ink')},
  };
}

// Draws a figure of Vega-Lite in place of the one before.
async function draw(id, spec, points) {
  const place = at(id);
  const turn = turns += 1;
  place.dataset.turn = turn;
  delete place.dataset.drawn;
  const whole = {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json',
    width: 'container', autosize: {type: 'fit', contains: 'padding'}, config: look(), ...spec,
  };
  const inside = element('div');
  const renderer = points > 1500 ? 'canvas' : 'svg';
  // Laid out where it will stand, so that its width is known.
  place.append(inside);
  const made = await vegaEmbed(inside, whole, {
    renderer, actions: {export: true, source: false, compiled: false, editor: false},
    tooltip: {theme: isDark() ? 'dark' : 'light'}, downloadFileName: id,
  });
  if (Number(place.dataset.turn) !== turn) {
    made.finalize();
    inside.remove();
    return;
  }
  views[id]?.finalize();
  views[id] = made;
  place.replaceChildren(inside, ...linksToData(id, spec));
  place.dataset.drawn = points;
}

// A link to the data of a figure as CSV, made when it is pressed.
function linksToData(id, spec) {
  const rows = (spec.data || {}).values || [];
  if (!rows.length) return [];
  const link = element('a', {href: '#', class: 'csv', download: `${id}.csv`}, 'Data as CSV');
  link.addEventListener('click', () => {
    const heads = [...new Set(rows.flatMap(Object.keys))];
    const cell = (x) => (x === null || x === undefined ? ''
      : /[",\n]/.test(x) ? `"${String(x).replaceAll('"', '""')}"` : String(x));
    const lines = [heads, ...rows.map((row) => heads.map((head) => row[head]))];
    const text = lines.map((line) => line.map(cell).join(',')).join('\n');
    link.href = URL.createObjectURL(new Blob([`${text}\n`], {type: 'text/csv'}));
  });
  return [link];
}

function clear(id) {
  views[id]?.finalize();
  delete views[id];
  at(id).dataset.turn = turns += 1;
  at(id).replaceChildren();
}

// Where a legend of names stands, and one of numbers.
const legendSide = () => (isNarrow() ? {orient: 'bottom', columns: 2} : {orient: 'right'});
const gradientSide = () => (isNarrow()
  ? {orient: 'bottom', direction: 'horizontal', gradientLength: 200} : {orient: 'right'});
