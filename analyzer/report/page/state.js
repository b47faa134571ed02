// What the reader chose: one object, one way to change it, one redraw a frame, kept in the address.

function createState(initial) {
  const values = { ...initial };
  const listeners = [];
  let changed = new Set();

  function flush() {
    const keys = changed;
    changed = new Set();
    for (const listener of listeners) listener(keys);
  }

  return {
    values,
    subscribe(listener) { listeners.push(listener); },
    update(patch) {
      for (const [key, value] of Object.entries(patch)) {
        if (values[key] === value) continue;
        values[key] = value;
        if (changed.size === 0) requestAnimationFrame(flush);
        changed.add(key);
      }
    },
  };
}

function readHash() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const number = (key) => {
    const value = fields.has(key) ? Number(fields.get(key)) : NaN;
    return Number.isFinite(value) ? Math.round(value) : null;
  };
  return {
    tab: fields.get('tab'), at: number('at'), from: number('from'), to: number('to'),
    buffer: number('buffer'), axis: fields.get('axis'), search: fields.get('q'),
    layerMode: fields.get('by'), measure: fields.get('size'),
  };
}

function writeHash(fields) {
  const kept = new URLSearchParams();
  for (const [key, value] of Object.entries(fields)) {
    if (value !== null && value !== undefined && value !== '') kept.set(key, value);
  }
  const hash = `#${kept}`;
  if (hash === location.hash || (hash === '#' && !location.hash)) return;
  try {
    history.replaceState(null, '', hash);
  } catch (refused) {
    location.hash = hash; // some browsers refuse replaceState on pages opened from disk
  }
}
