// The reader's choices: one object, one way to change it, one redraw per frame.

function createState(initial) {
  const values = { ...initial };
  const listeners = [];
  let changed = new Set();

  function flush() {
    const keys = changed;
    changed = new Set();
    for (const listener of listeners) listener(keys);
  }

  function touch(key) {
    if (changed.size === 0) requestAnimationFrame(flush);
    changed.add(key);
  }

  return {
    values, touch,
    subscribe(listener) { listeners.push(listener); },
    update(patch) {
      for (const [key, value] of Object.entries(patch)) {
        if (values[key] === value) continue;
        values[key] = value;
        touch(key);
      }
    },
  };
}
