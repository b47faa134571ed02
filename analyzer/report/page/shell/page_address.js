// The view in the address of the page, for links, reloading and the history.

const FILTER = 'f.'; // prefix for the names of a table's filters

function readHash() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const number = (key) => {
    const value = fields.has(key) ? Number(fields.get(key)) : NaN;
    return Number.isFinite(value) ? Math.round(value) : null;
  };
  const filters = {};
  for (const [key, value] of fields) if (key.startsWith(FILTER)) filters[key.slice(FILTER.length)] = value;
  return {
    tab: fields.get('tab'), at: number('at'), from: number('from'), to: number('to'),
    buffer: number('buffer'), since: number('since'), axis: fields.get('axis'),
    layerMode: fields.get('by'), measure: fields.get('size'), part: fields.get('part'),
    choices: { words: fields.get('q') || '', sort: fields.get('sort') || '', filters },
  };
}

// The fragment for everything that differs from the opening view.
function hashOf({ choices, ...fields }) {
  const kept = new URLSearchParams();
  const keep = (key, value) => { if (value !== null && value !== undefined && value !== '') kept.set(key, value); };
  for (const [key, value] of Object.entries(fields)) keep(key, value);
  if (choices) {
    keep('q', choices.words);
    keep('sort', choices.sort);
    for (const [label, value] of Object.entries(choices.filters)) keep(FILTER + label, value);
  }
  return `#${kept}`;
}

// Browsers refuse frequent changes of the address: the first one is written at once, later ones are
// joined. `follow` is called if someone else changes the address.
function createAddress(fieldsOf, follow) {
  const PAUSE_MS = 250;
  let pending = null;
  let writtenAt = -Infinity;
  let own = location.hash || '#';

  function write() {
    pending = null;
    writtenAt = performance.now();
    const hash = hashOf(fieldsOf());
    if (hash === own) return;
    own = hash;
    try {
      history.replaceState(null, '', hash);
    } catch (refused) {
      location.hash = hash; // some browsers refuse replaceState on pages opened from disk
    }
  }
  addEventListener('hashchange', () => {
    if ((location.hash || '#') === own) return;
    own = location.hash || '#';
    follow(readHash());
  });
  return {
    save() {
      const wait = writtenAt + PAUSE_MS - performance.now();
      if (wait <= 0 && pending === null) write(); else pending ??= setTimeout(write, wait);
    },
  };
}
