// The recording: bytes by category at each state, and its buffers.
// State 0 is before the first event, state i + 1 is after event i. Buffer b is alive at state s if
// born[b] <= s < dies[b]; before turns[b] it has the category early[b].

// The lowest whole number from `low` to `high` that passes a test; `high` if none below it does.
function lowestThat(test, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(middle)) high = middle; else low = middle + 1;
  }
  return low;
}

function createRecording({ header, columns }) {
  const { states, categories, strings } = header;
  const series = categories.map(() => new Float64Array(states + 1));
  const allocated = new Float64Array(states + 1);
  const { born, dies, turns, early, requested, allocated: chunk, category } = columns;

  for (let b = 0; b < born.length; b += 1) {
    const turnsAt = Math.min(Math.max(turns[b], born[b]), dies[b]);
    const end = Math.min(dies[b], states);
    if (turnsAt > born[b]) {
      series[early[b]][born[b]] += requested[b];
      series[early[b]][Math.min(turnsAt, states)] -= requested[b];
    }
    if (turnsAt < dies[b]) {
      series[category[b]][turnsAt] += requested[b];
      series[category[b]][end] -= requested[b];
    }
    allocated[born[b]] += chunk[b];
    allocated[end] -= chunk[b];
  }
  const total = new Float64Array(states);
  for (const [code, line] of series.entries()) {
    const folded = columns[`folded_${categories[code]}`];
    for (let s = 0, sum = 0; s < states; s += 1) {
      sum += line[s];
      line[s] = sum + (folded ? folded[s] : 0);
      total[s] += line[s];
    }
  }
  for (let s = 0, sum = 0; s < states; s += 1) {
    sum += allocated[s];
    allocated[s] = sum + (columns.folded_allocated ? columns.folded_allocated[s] : 0);
  }

  const textOf = (column, b) => strings[columns[column][b]];
  const replayed = header.document.what_if || null;
  const peakInstant = header.document.peak.instant;
  const highest = indexOfLargest(total, 0, states);
  return {
    header, document: header.document, columns, strings, states, categories, total,
    series: series.map((line) => line.subarray(0, states)),
    allocated: allocated.subarray(0, states),
    pool: changesToCurve(header.document.pool_timeline, states),
    replayedPool: replayed ? changesToCurve(replayed.pool_timeline, states, replayed.failure ? replayed.failure.instant + 1 : states) : null,
    failures: [header.document.failure, replayed && replayed.failure && { ...replayed.failure, isReplayed: true }].filter((failure) => failure && Number.isInteger(failure.requested_bytes)),
    buffers: born.length,
    steps: header.steps,
    peakState: Number.isInteger(peakInstant) ? peakInstant + 1 : highest,
    highestState: highest,
    isUsed: series.map((line) => line.some((bytes) => bytes > 0)),
    times: columns.time_ps || null,
    textOf,
    nameOf: (b) => textOf('name', b) || '(no op)',
    isAlive: (b, state) => born[b] <= state && state < dies[b],
    categoryAt: (b, state) => (state < turns[b] ? early[b] : category[b]),
    aliveAt: (state) => aliveAt(born, dies, state),
    stepAt: (state) => header.steps.find((step) => step.first + 1 <= state && state <= step.last + 1) || null,
    secondsAt: (state) => (columns.time_ps && state > 0 ? columns.time_ps[state - 1] / 1e12 : null),
    eventAt: (state) => eventAt(state, born, dies),
  };
}

// The value of a size at each state, from its changes; NaN if it is unknown.
function changesToCurve(changes, states, end = states) {
  if (!changes || changes.length === 0) return null;
  const curve = new Float64Array(states).fill(NaN);
  changes.forEach(({ instant, pool_bytes: sizeBytes }, place) => {
    const next = place + 1 < changes.length ? changes[place + 1].instant + 1 : end + 1;
    curve.fill(sizeBytes, Math.max(0, instant + 1), Math.min(next, states));
  });
  return curve;
}

function indexOfLargest(values, from, to) {
  let best = from;
  for (let i = from + 1; i < to; i += 1) if (values[i] > values[best]) best = i;
  return best;
}

function aliveAt(born, dies, state) {
  const alive = [];
  // Buffers are in order of birth.
  for (let b = 0; b < born.length && born[b] <= state; b += 1) if (state < dies[b]) alive.push(b);
  return alive;
}

// The buffer that is allocated or freed at a state; null for an event of another allocator.
function eventAt(state, born, dies) {
  if (state === 0) return null;
  const buffer = lowestThat((b) => born[b] >= state, 0, born.length);
  if (buffer < born.length && born[buffer] === state) return { kind: 'allocates', buffer };
  const freed = dies.indexOf(state);
  return freed < 0 ? null : { kind: 'frees', buffer: freed };
}
