// Unpacks the page, draws its figures and follows its colors and width.

let DATA;

function drawAll() {
  checkColors();
  return Promise.all([drawCurves(), drawClients(), drawClusters(), drawConfusion()]);
}

// Swatches have the colors of the figures.
function checkColors() {
  at('curve-methods').querySelectorAll('svg').forEach((svg, i) => svg.replaceWith(swatch(i)));
}

async function start() {
  run(await unpacked('library'));
  DATA = JSON.parse(await unpacked('data'));
  startCurves();
  startClients();
  startClusters();
  startConfusion();
  at('theme').addEventListener('change', () => {
    document.documentElement.dataset.theme = at('theme').value;
    if (!at('theme').value) delete document.documentElement.dataset.theme;
    drawAll();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
  let narrow = isNarrow();
  addEventListener('resize', () => {
    if (narrow === isNarrow()) return;
    narrow = isNarrow();
    drawAll();
  });
  await drawAll();
  document.documentElement.dataset.ready = 'yes';
}

start().catch((error) => {
  at('problem').hidden = false;
  at('problem').textContent = typeof DecompressionStream === 'undefined'
    ? 'The figures need a browser of 2023 or later; the tables below do not.'
    : `The figures could not be drawn: ${error.message}`;
  console.error(error);
});
