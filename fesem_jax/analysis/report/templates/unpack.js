// What the page carries: gzipped text in base 64.

async function unpacked(id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).text();
}

function run(source) {
  const script = document.createElement('script');
  script.textContent = source;
  document.head.append(script);
}

const at = (id) => document.getElementById(id);

// A new element; text is never read as markup.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function options(id, pairs) {
  at(id).replaceChildren(...pairs.map(([value, text]) => element('option', {value}, text)));
}

// Shows a section's content, or the sentence that it has none.
function present(id, there) {
  at(id).querySelector('.absent').hidden = there;
  at(id).querySelector('.present').hidden = !there;
}
