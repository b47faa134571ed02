// Requested bytes by category over time, with lines for the pool and the limit.
// Each pixel column shows the instant with the largest total in it, so no peak is lost.

const TIMELINE_FOOT = 20;
const TIMELINE_HEAD = 31; // two rows of labels: the steps, and the peak

// For each pixel column: the state with the largest total, and the most allocated bytes.
function columnStates(axis, recording, width) {
  const inner = Math.max(0, Math.floor(width - AXIS_PADDING.left - AXIS_PADDING.right));
  const picked = new Int32Array(inner);
  const mostAllocated = new Float64Array(inner);
  const { total, allocated, states } = recording;
  let s = axis.stateAtPosition(axis.fromX(AXIS_PADDING.left, width));
  for (let x = 0; x < inner; x += 1) {
    const end = axis.fromX(AXIS_PADDING.left + x + 1, width);
    let best = s;
    let most = allocated[s];
    while (s + 1 < states && axis.positionOf(s + 1) < end) {
      s += 1;
      if (total[s] > total[best]) best = s;
      if (allocated[s] > most) most = allocated[s];
    }
    // The next column may begin exactly at the next state.
    if (s + 1 < states && axis.positionOf(s + 1) === end) s += 1;
    picked[x] = best;
    mostAllocated[x] = most;
  }
  return { picked, mostAllocated };
}

// Lines for the pool and the limits: a curve, or a level if only that is known.
function timelineLines(recording) {
  const { document: doc } = recording;
  const replayed = doc.what_if || null;
  const { verdict, failure } = doc;
  const besidePool = (verdict.need && verdict.need.beside_pool) ? verdict.need.beside_pool.bytes : 0;
  const limit = (verdict.limit_bytes && verdict.limit_bytes - besidePool) || (failure && failure.memory_limit_bytes) || null;
  const isAsked = replayed && replayed.memory_limit_bytes !== doc.device.memory_limit_bytes;
  const peakPool = doc.peak.pool_bytes || null;
  return [
    { name: recording.pool ? 'pool' : 'pool at the peak', colour: 'pool', curve: recording.pool, level: recording.pool ? null : peakPool, reach: 2.2 },
    replayed && { name: 'pool when replayed', colour: 'accent', curve: recording.replayedPool, level: null, reach: 2.2, dash: [2, 3] },
    { name: 'limit', colour: 'limit', curve: null, level: limit, reach: 1.6, isQuiet: Boolean(replayed) },
    isAsked && { name: 'limit when replayed', colour: 'limit', curve: null, level: replayed.memory_limit_bytes, reach: 1.6 },
  ].filter((line) => line && (line.curve || line.level) && !(replayed && line.name === 'limit' && limit === replayed.memory_limit_bytes));
}

function createTimeline(container, recording, axis, state) {
  const { total, series, failures } = recording;
  const lines = timelineLines(recording);
  let columns = { picked: new Int32Array(0), mostAllocated: new Float64Array(0) };
  let top = 1;
  let head = TIMELINE_HEAD;
  let labels = null;

  // The highest value of a line in view.
  const highestOf = ({ curve, level }) => (curve ? columns.picked.reduce((most, s) => (curve[s] > most ? curve[s] : most), 0) : level);

  function scale(width) {
    columns = columnStates(axis, recording, width);
    top = 1;
    for (let x = 0; x < columns.picked.length; x += 1) {
      top = Math.max(top, total[columns.picked[x]], columns.mostAllocated[x]);
    }
    for (const failure of failures) if (isInView(failure.instant + 1)) top = Math.max(top, Math.min(failure.in_use_bytes + failure.requested_bytes, 2.2 * top));
    for (const line of lines) {
      line.highest = highestOf(line);
      if (line.highest <= line.reach * top) top = Math.max(top, line.highest);
    }
    top *= 1.04;
    head = TIMELINE_HEAD + LABEL_HEIGHT * lines.filter((line) => line.highest > top && !line.isQuiet).length;
  }
  const isInView = (s) => axis.positionOf(s + 1) >= axis.view[0] && axis.positionOf(s) <= axis.view[1];
  const toY = (sizeBytes, height) => head + (1 - sizeBytes / top) * (height - head - TIMELINE_FOOT);

  function draw(context, width, height) {
    scale(width);
    labels = createLabels(context, { left: AXIS_PADDING.left + 2, right: width - AXIS_PADDING.right - 2, top: 1, bottom: height - TIMELINE_FOOT });
    drawSteps(context, width, height);
    drawGrid(context, width, top, (bytes) => toY(bytes, height));
    drawStack(context, height);
    drawOutline(context, height, (x) => total[columns.picked[x]], colours.ink, 1, []);
    drawOutline(context, height, (x) => columns.mostAllocated[x], colours.ink, 1.2, [4, 2]);
    for (const line of lines) drawLine(context, line, height);
    drawAxisLabels(context, axis, recording, width, height - 8);
    for (const failure of failures) drawFailure(context, failure, width, height);
    drawPins(context, width, height);
    // Names of lines come last: they can go anywhere along the line.
    for (const line of lines) nameLine(line, width, height);
  }

  function drawSteps(context, width, height) {
    context.textAlign = 'left';
    for (const step of recording.steps) {
      if (step.last < step.first) continue;
      const [from, to] = [step.first + 1, step.last + 2].map((s) => clampX(axis.xOfState(s, width), width));
      if (to <= from) continue;
      context.fillStyle = colours.band;
      if (step.index % 2 === 0) context.fillRect(from, 0, to - from, height - TIMELINE_FOOT);
      context.strokeStyle = colours.line;
      context.strokeRect(Math.round(from) + 0.5, -1, Math.round(to - from), height - TIMELINE_FOOT + 1);
      context.fillStyle = colours.muted;
      const names = [`step ${step.number ?? step.index}`, String(step.number ?? step.index)];
      const name = names.find((text) => context.measureText(text).width <= to - from - 8);
      if (!name) continue;
      context.fillText(name, from + 5, 9);
      labels.reserve(name, from + 5, 9);
    }
  }

  function drawStack(context, height) {
    const { picked } = columns;
    const below = new Float64Array(picked.length);
    for (const [code, line] of series.entries()) {
      context.fillStyle = colours.category[code];
      context.beginPath();
      for (let x = 0; x < picked.length;) {
        // One rectangle for a run of columns that look the same.
        const size = line[picked[x]];
        const start = x;
        const base = below[x];
        while (x < picked.length && line[picked[x]] === size && below[x] === base) { below[x] += size; x += 1; }
        if (size > 0) {
          const y = toY(base + size, height);
          context.rect(AXIS_PADDING.left + start, y, x - start, toY(base, height) - y);
        }
      }
      context.fill();
    }
  }

  function drawOutline(context, height, valueAt, colour, lineWidth, dash) {
    context.strokeStyle = colour;
    context.lineWidth = lineWidth;
    context.setLineDash(dash);
    context.beginPath();
    for (let x = 0; x < columns.picked.length; x += 1) {
      const y = toY(valueAt(x), height);
      if (x === 0) context.moveTo(AXIS_PADDING.left, y); else context.lineTo(AXIS_PADDING.left + x, y);
      context.lineTo(AXIS_PADDING.left + x + 1, y);
    }
    context.stroke();
    context.setLineDash([]);
  }

  function drawLine(context, line, height) {
    if (line.highest > top) return;
    drawOutline(context, height, line.curve ? (x) => line.curve[columns.picked[x]] : () => line.level, colours[line.colour], 1.5, line.dash || (line.curve ? [] : [7, 4]));
  }

  function nameLine(line, width, height) {
    const right = width - AXIS_PADDING.right - 4;
    if (line.highest > top) {
      if (!line.isQuiet) labels.write(`${line.name} ${formatBytes(line.highest)} (above) ↑`, [[right, 9, 'right']], colours[line.colour]);
    } else if (line.highest) {
      const y = toY(line.highest, height);
      labels.write(`${line.name} ${formatBytes(line.highest)}`, y < 36 ? [[right, y + 9, 'right'], [right, y - 8, 'right']] : [[right, y - 8, 'right'], [right, y + 9, 'right']], colours[line.colour]);
    }
  }

  // A failed request as a box on top of the bytes in use.
  function drawFailure(context, failure, width, height) {
    if (!isInView(failure.instant + 1)) return;
    const x = axis.toX((axis.positionOf(failure.instant + 1) + axis.positionOf(failure.instant + 2)) / 2, width);
    const base = toY(failure.in_use_bytes, height);
    const y = Math.max(2, toY(failure.in_use_bytes + failure.requested_bytes, height));
    context.fillStyle = colours.limit;
    context.globalAlpha = 0.22;
    context.fillRect(x - 9, y, 18, base - y);
    context.globalAlpha = 1;
    context.strokeStyle = colours.limit;
    context.lineWidth = 1.5;
    context.setLineDash([3, 2]);
    context.strokeRect(x - 9, y, 18, base - y);
    context.setLineDash([]);
    const middle = Math.max((2 * y + base) / 3, 10);
    const places = [[x + 14, middle, 'left'], [x - 14, middle, 'right']];
    labels.write(`${formatBytes(failure.requested_bytes)} request fails${failure.isReplayed ? ' when replayed' : ''}`, x > width / 2 ? places.reverse() : places, colours.limit);
  }

  function drawPins(context, width, height) {
    pin(recording.peakState, `peak ${formatBytes(total[recording.peakState] || 0)}`);
    if (total[recording.highestState] > total[recording.peakState]) {
      pin(recording.highestState, `highest ${formatBytes(total[recording.highestState])}`);
    }
    function pin(s, text) {
      const x = axis.toX((axis.positionOf(s) + axis.positionOf(s + 1)) / 2, width);
      if (x < AXIS_PADDING.left || x > width - AXIS_PADDING.right) return;
      const y = toY(total[s], height);
      context.fillStyle = colours.ink;
      context.beginPath();
      context.moveTo(x, y - 1);
      context.lineTo(x - 5, y - 9);
      context.lineTo(x + 5, y - 9);
      context.fill();
      // Next to the mark, above the line of allocated bytes.
      const room = context.measureText(text).width + 10;
      const above = (from, to) => {
        const lines = columns.mostAllocated.subarray(Math.max(0, Math.floor(from - AXIS_PADDING.left)), Math.max(1, Math.ceil(to - AXIS_PADDING.left)));
        return Math.max(8, Math.min(y, toY(lines.reduce((most, bytes) => Math.max(most, bytes), 0), height)) - 9);
      };
      const places = [[x + 8, above(x, x + room), 'left'], [x - 8, above(x - room, x), 'right']];
      labels.write(text, x + room > width - AXIS_PADDING.right ? places.reverse() : places, colours.ink);
    }
  }

  const chart = createCanvas(container, {
    height: 320, label: 'Requested bytes over time, stacked by category. The list below has the numbers of the chosen instant.',
    draw, overlay: (context, width, height) => {
      drawMarked(context, height);
      drawAxisCursor(context, chart, axis, state, width, height);
    },
  });

  // The bytes of the marked buffers over time, from the bottom.
  function drawMarked(context, height) {
    const { marked } = state.values;
    if (!marked) return;
    const bytes = bytesAtStates(recording, marked, columns.picked);
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.75;
    context.beginPath();
    for (let x = 0; x < columns.picked.length; x += 1) {
      if (bytes[x] > 0) context.rect(AXIS_PADDING.left + x, Math.min(toY(bytes[x], height), toY(0, height) - 2), 1, Math.max(2, toY(0, height) - toY(bytes[x], height)));
    }
    context.fill();
    context.globalAlpha = 1;
  }

  // The buffers of the category under the pointer.
  function buffersAt(s, y) {
    let bytes = 0;
    for (const [code, line] of series.entries()) {
      bytes += line[s];
      if (y < toY(bytes, chart.height)) continue;
      return y > toY(0, chart.height) ? [] : recording.aliveAt(s).filter((b) => recording.categoryAt(b, s) === code);
    }
    return [];
  }
  const stateAtX = (x) => columns.picked[Math.max(0, Math.min(columns.picked.length - 1, Math.floor(x - AXIS_PADDING.left)))] ?? 0;
  attachAxisGestures(chart, axis, recording, state, {
    pick: (x) => state.update({ at: stateAtX(x) }),
    hover: (x, y, event) => {
      const s = stateAtX(x);
      markBuffers(state, buffersAt(s, y));
      showTooltip(event, describeInstant(recording, s), instantLines(recording, s));
    },
  });
  return { chart, stateAtX, labels: () => labels.taken };
}

function describeInstant(recording, s) {
  const step = recording.stepAt(s);
  const seconds = recording.secondsAt(s);
  const parts = [s === 0 ? 'before the first event' : `instant ${formatCount(s - 1)}`];
  if (step) parts.push(`step ${step.number ?? step.index}`);
  if (seconds !== null) parts.push(formatSeconds(seconds));
  return parts.join(' · ');
}

function instantLines(recording, s) {
  /** @type {(string | any[])[]} */
  const lines = [[null, 'requested', recording.total[s]], [null, 'allocated', recording.allocated[s]]];
  if (recording.pool && recording.pool[s] >= 0) lines.push([null, 'pool', recording.pool[s]]);
  recording.categories.forEach((name, code) => {
    const sizeBytes = recording.series[code][s];
    if (sizeBytes > 0) lines.push([name, CATEGORY_LABELS[name], sizeBytes]);
  });
  const event = recording.eventAt(s);
  if (event) lines.push(`${recording.textOf('op', event.buffer) || '(no op)'} ${event.kind} ${formatBytes(recording.columns.requested[event.buffer])}`);
  return lines;
}

// The whole recording in small, with the part in view as a movable window.
function createMinimap(container, recording, axis) {
  const wholeAxis = { ...axis, fromX: (x, width) => axis.fromX(x, width, axis.whole()) };
  const toX = (position, width) => axis.toX(position, width, axis.whole());
  const highest = recording.total[recording.highestState] || 1;

  function draw(context, width, height) {
    const { picked } = columnStates(wholeAxis, recording, width);
    context.fillStyle = colours.faint;
    context.beginPath();
    for (let x = 0; x < picked.length; x += 1) {
      const barHeight = recording.total[picked[x]] / highest * (height - 2);
      context.rect(AXIS_PADDING.left + x, height - barHeight, 1, barHeight);
    }
    context.fill();
  }
  function overlay(context, width, height) {
    const from = toX(axis.view[0], width);
    const to = Math.max(from + 2, toX(axis.view[1], width));
    context.fillStyle = colours.accent;
    context.globalAlpha = axis.isAll() ? 0.06 : 0.16;
    context.fillRect(from, 0, to - from, height);
    context.globalAlpha = 1;
    context.strokeStyle = colours.accent;
    context.strokeRect(from + 0.5, 0.5, to - from - 1, height - 1);
  }
  const chart = createCanvas(container, { height: 34, label: 'The whole recording; the marked part is in view above.', draw, overlay, focusable: false });
  let dragFrom = null;
  const position = (event) => wholeAxis.fromX(event.clientX - chart.canvas.getBoundingClientRect().left, chart.width);
  chart.canvas.addEventListener('pointerdown', (event) => {
    const at = position(event);
    const inside = !axis.isAll() && at >= axis.view[0] && at <= axis.view[1];
    dragFrom = { at, offset: inside ? at - axis.view[0] : null };
    try { chart.canvas.setPointerCapture(event.pointerId); } catch (gone) { /* the pointer is up again */ }
  });
  chart.canvas.addEventListener('pointermove', (event) => {
    if (!dragFrom) return;
    const at = position(event);
    const width = axis.view[1] - axis.view[0];
    if (dragFrom.offset !== null) axis.setView(at - dragFrom.offset, at - dragFrom.offset + width);
    else if (Math.abs(toX(at, chart.width) - toX(dragFrom.at, chart.width)) > 4) axis.setView(Math.min(at, dragFrom.at), Math.max(at, dragFrom.at));
  });
  chart.canvas.addEventListener('pointerup', () => { dragFrom = null; });
  chart.canvas.addEventListener('dblclick', () => axis.showAll());
  return chart;
}

// The numbers of the chosen instant as text.
function renderInstant(recording, state) {
  const { at } = state.values;
  const event = recording.eventAt(at);
  const { window: chosen } = state.values;
  byId('instant').replaceChildren(
    element('span', { class: 'when', text: describeInstant(recording, at) }),
    chosen
      ? element('span', { class: 'event' }, `${unbroken(describeWindow(recording, chosen))} `,
        element('button', { type: 'button', text: 'Clear the window', onclick: () => state.update({ window: null }) }))
      : element('span', { class: 'event', text: event
        ? `${shortName(recording.textOf('op', event.buffer), 80) || '(no op)'} ${event.kind} ${formatBytes(recording.columns.requested[event.buffer])}`
        : '' }),
    element('span', { class: 'jumps' },
      element('button', { type: 'button', text: 'the peak', title: 'The peak (p)', disabled: at === recording.peakState, onclick: () => state.update({ at: recording.peakState }) })));
  // To a screen reader the chart is a slider over the instants.
  const slider = byId('timeline').querySelector('canvas');
  const spoken = `${describeInstant(recording, at)}, requested ${formatBytes(recording.total[at])}, allocated ${formatBytes(recording.allocated[at])}`;
  const attributes = { role: 'slider', 'aria-valuemin': 0, 'aria-valuemax': recording.states - 1, 'aria-valuenow': at, 'aria-valuetext': spoken };
  for (const [name, value] of Object.entries(attributes)) slider.setAttribute(name, value);
  byId('legend').replaceChildren(
    element('span', { class: 'key' }, element('b', { text: 'requested' }), sizeElement(recording.total[at])),
    element('span', { class: 'key' }, element('b', { class: 'dashed', text: 'allocated' }), sizeElement(recording.allocated[at])),
    recording.pool && recording.pool[at] >= 0 ? element('span', { class: 'key' }, element('b', { class: 'pooled', text: 'pool' }), sizeElement(recording.pool[at])) : '',
    ...recording.categories.map((name, code) => ({ name, sizeBytes: recording.series[code][at], used: recording.isUsed[code] }))
      .filter(({ used }) => used)
      .map(({ name, sizeBytes }) => element('span', { class: 'key' }, swatchElement(name), element('span', { text: CATEGORY_LABELS[name] }), sizeElement(sizeBytes))));
}
