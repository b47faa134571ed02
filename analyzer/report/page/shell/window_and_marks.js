// The chosen window of instants, and the marked (hovered) buffers, which all views share.

// A window [from, to]: its buffers were allocated after `from` and live at `to`.
const isInWindow = ({ columns }, b, [from, to]) => columns.born[b] > from && columns.born[b] <= to && columns.dies[b] > to;

// The buffers that the views list: alive at the instant, or those of the window.
function listedBuffers(recording, { at, window: chosen }) {
  const alive = recording.aliveAt(chosen ? chosen[1] : at);
  return chosen ? alive.filter((b) => isInWindow(recording, b, chosen)) : alive;
}

// What happened in a window, as text.
function describeWindow(recording, chosen) {
  const { born, requested } = recording.columns;
  const [from, to] = chosen;
  let [count, bytes, living, livingBytes] = [0, 0, 0, 0];
  for (let b = lowestThat((place) => born[place] > from, 0, born.length); b < born.length && born[b] <= to; b += 1) {
    count += 1;
    bytes += requested[b];
    if (!isInWindow(recording, b, chosen)) continue;
    living += 1;
    livingBytes += requested[b];
  }
  return `Instants ${formatCount(from - 1)} to ${formatCount(to - 1)}: of ${formatCount(count)} allocated buffers (${formatBytes(bytes)}), ${formatCount(living)} live at the end (${formatBytes(livingBytes)}).`;
}

// Mark buffers in every view; the same list is marked once.
function markBuffers(state, buffers) {
  const before = state.values.marked;
  const wanted = buffers.length ? buffers : null;
  if (before && wanted && before.length === wanted.length && before.every((b, i) => b === wanted[i])) return;
  state.update({ marked: wanted });
}

// The requested bytes of buffers at each of some ascending states.
function bytesAtStates({ columns }, buffers, states) {
  const changes = new Float64Array(states.length + 1);
  for (const b of buffers) {
    changes[lowestThat((i) => states[i] >= columns.born[b], 0, states.length)] += columns.requested[b];
    changes[lowestThat((i) => states[i] >= columns.dies[b], 0, states.length)] -= columns.requested[b];
  }
  for (let i = 1; i < changes.length; i += 1) changes[i] += changes[i - 1];
  return changes;
}

// Rows below this share of all bytes are shown on request only.
const LEAST_SHARE = 0.001;

// The choices that a reader keeps from page to page, in the browser's storage.
const CHOICES_KEY = 'tf-memory-analyzer-choices';
const CHOICES = {
  axis: ['events', 'time'], drag: ['zoom', 'window'], layerMode: ['layer', 'source'], isSmallShown: [true, false],
};

function readChoices() {
  try {
    const stored = Object.entries(JSON.parse(localStorage.getItem(CHOICES_KEY) || '{}'));
    return Object.fromEntries(stored.filter(([key, value]) => CHOICES[key] && CHOICES[key].includes(value)));
  } catch (unreadable) {
    return {};
  }
}

function storeChoices(values) {
  const kept = Object.fromEntries(Object.keys(CHOICES).map((key) => [key, values[key]]));
  try { localStorage.setItem(CHOICES_KEY, JSON.stringify(kept)); } catch (denied) { /* used, not stored */ }
}
