// The x axis of the timeline, the lifetimes and the allocator map, and its gestures.
// A position is a state number on the axis of events, and picoseconds on the axis of time.

const AXIS_PADDING = { left: 64, right: 12 };
const clampX = (x, width) => Math.max(AXIS_PADDING.left, Math.min(width - AXIS_PADDING.right, x));

function createAxis(recording, state) {
  const { states, times } = recording;
  let positions = null; // null: the position of a state is its number

  function useTime(on) {
    positions = null;
    if (!on || !times) return;
    const span = times[times.length - 1] - times[0] || 1;
    positions = new Float64Array(states + 1);
    positions[0] = times[0] - span / 200;
    positions.set(times, 1);
    positions[states] = times[times.length - 1] + span / 200;
  }

  const positionOf = (s) => (positions ? positions[Math.max(0, Math.min(states, s))] : s);
  function stateAtPosition(position) {
    if (!positions) return Math.max(0, Math.min(states - 1, Math.floor(position)));
    return Math.max(0, lowestThat((s) => positions[s] > position, 0, states) - 1);
  }
  // The first state that begins at a position or later.
  function stateFromPosition(position) {
    if (!positions) return Math.max(0, Math.min(states, Math.ceil(position)));
    return lowestThat((s) => positions[s] >= position, 0, states);
  }
  const whole = () => [positionOf(0), positionOf(states)];

  // The nearest part of the recording that is not too short to draw.
  function within(from, to) {
    const [first, last] = whole();
    const shortest = positions ? (last - first) / 1e7 : 4;
    const width = Math.min(Math.max(to - from, shortest), last - first);
    const start = Math.min(Math.max(from, first), last - width);
    return [start, Math.min(start + width, last)];
  }

  const axis = {
    positionOf, stateAtPosition, whole, useTime,
    isTime: () => positions !== null,
    view: [0, states],
    setView(from, to) {
      axis.view = within(from, to);
      state.update({ viewKey: axis.view.join(':') });
    },
    showStates(from, to) { axis.setView(positionOf(from), positionOf(to)); },
    isView(from, to) { const [start, end] = within(from, to); return axis.view[0] === start && axis.view[1] === end; },
    showAll() { axis.setView(...whole()); },
    isAll() { const [first, last] = whole(); return axis.view[0] <= first && axis.view[1] >= last; },
    // The states around the view; showing them again gives the same view.
    viewStates: () => [stateAtPosition(axis.view[0]), stateFromPosition(axis.view[1])],
    visibleStates: () => [stateAtPosition(axis.view[0]), stateAtPosition(axis.view[1])],
    showState(s) {
      const position = positionOf(s);
      const [from, to] = axis.view;
      if (position >= from && position <= to) return;
      axis.setView(position - (to - from) / 2, position + (to - from) / 2);
    },
    zoom(factor, around) {
      const [from, to] = axis.view;
      const middle = around ?? positionOf(state.values.at);
      const anchor = middle >= from && middle <= to ? middle : (from + to) / 2;
      axis.setView(anchor - (anchor - from) * factor, anchor + (to - anchor) * factor);
    },
    pan(positionsMoved) { axis.setView(axis.view[0] + positionsMoved, axis.view[1] + positionsMoved); },
    toX(position, width, [from, to] = axis.view) {
      return AXIS_PADDING.left + (position - from) / (to - from) * (width - AXIS_PADDING.left - AXIS_PADDING.right);
    },
    fromX(x, width, [from, to] = axis.view) {
      return from + (x - AXIS_PADDING.left) / (width - AXIS_PADDING.left - AXIS_PADDING.right) * (to - from);
    },
    xOfState: (s, width) => axis.toX(positionOf(s), width),
  };
  return axis;
}

// Bottom labels: events or time.
function drawAxisLabels(context, axis, recording, width, y) {
  const [from, to] = axis.view;
  const [first] = axis.whole();
  const step = niceStep((to - from) / Math.max(2, Math.floor(width / 130)));
  const origin = axis.isTime() ? first : 1;
  context.fillStyle = colours.muted;
  context.textAlign = 'center';
  for (let tick = Math.ceil((from - origin) / step) * step || 0; tick <= to - origin; tick += step) {
    const x = axis.toX(tick + origin, width);
    if (x < AXIS_PADDING.left || x > width - AXIS_PADDING.right - 14) continue;
    context.fillText(axis.isTime() ? formatSeconds(tick / 1e12) : formatCount(tick), x, y);
  }
}

// Lines at round sizes, with their labels.
function drawGrid(context, width, top, toY) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, top / 5)));
  context.textAlign = 'right';
  context.strokeStyle = colours.line;
  context.fillStyle = colours.muted;
  context.lineWidth = 1;
  for (let level = 0; level <= top; level += step) {
    const y = Math.round(toY(level)) + 0.5;
    context.strokeRect(AXIS_PADDING.left, y, width - AXIS_PADDING.left - AXIS_PADDING.right, 0);
    context.fillText(level ? formatTick(level) : '0', AXIS_PADDING.left - 7, y);
  }
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= rough) || 10 * power;
}

// Wheel, drag to zoom, Shift and drag to move, double click, arrows. `pick(x, y)` is called on click.
function attachAxisGestures(chart, axis, recording, state, { pick, hover }) {
  const { canvas } = chart;
  let drag = null;
  const xOf = (event) => event.clientX - canvas.getBoundingClientRect().left;
  const yOf = (event) => event.clientY - canvas.getBoundingClientRect().top;

  canvas.addEventListener('wheel', (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    const meant = event.ctrlKey || event.metaKey || document.activeElement === canvas || sideways;
    if (!meant) return;
    event.preventDefault();
    const span = axis.view[1] - axis.view[0];
    if (sideways) axis.pan((event.deltaX || event.deltaY) / chart.width * span);
    else axis.zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) / 300), axis.fromX(xOf(event), chart.width));
  }, { passive: false });

  const chooseWindow = (from, to) => { if (to > from) state.update({ window: [from, to], at: to }); };

  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    drag = { startX: xOf(event), lastX: xOf(event), moves: event.shiftKey };
    try { canvas.setPointerCapture(event.pointerId); } catch (gone) { /* the pointer is up again */ }
  });
  canvas.addEventListener('pointermove', (event) => {
    if (!drag) {
      chart.hoverX = xOf(event);
      chart.redrawOverlay();
      hover(xOf(event), yOf(event), event);
      return;
    }
    if (drag.moves) axis.pan(axis.fromX(drag.lastX, chart.width) - axis.fromX(xOf(event), chart.width));
    drag.lastX = xOf(event);
    chart.brush = !drag.moves && Math.abs(drag.lastX - drag.startX) > 4 ? [drag.startX, drag.lastX] : null;
    chart.redrawOverlay();
  });
  canvas.addEventListener('pointerup', (event) => {
    if (!drag) return;
    const { startX, moves } = drag;
    const endX = xOf(event);
    drag = null;
    chart.brush = null;
    const ends = [startX, endX].sort((a, b) => a - b).map((x) => axis.fromX(x, chart.width));
    if (Math.abs(endX - startX) <= 4) pick(endX, yOf(event));
    else if (!moves && state.values.drag === 'window') chooseWindow(...ends.map(axis.stateAtPosition));
    else if (!moves) axis.setView(ends[0], ends[1]);
    chart.redrawOverlay();
  });
  canvas.addEventListener('pointercancel', () => { drag = null; chart.brush = null; });
  canvas.addEventListener('pointerleave', () => { if (!drag) { hideTooltip(); markBuffers(state, []); chart.hoverX = null; chart.redrawOverlay(); } });
  canvas.addEventListener('dblclick', () => axis.showAll());
  canvas.addEventListener('keydown', (event) => onAxisKey(event, axis, recording, state));
}

function onAxisKey(event, axis, recording, state) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { at } = state.values;
  const forward = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
  if (forward) {
    const target = event.shiftKey ? nextStepStart(recording, at, forward) : at + forward;
    state.update({ at: Math.max(0, Math.min(recording.states - 1, target)) });
    axis.showState(target);
  } else if (event.key === 'Home' || event.key === 'End') {
    const target = event.key === 'Home' ? 0 : recording.states - 1;
    state.update({ at: target });
    axis.showState(target);
  } else if (event.key === '+' || event.key === '=') axis.zoom(0.6);
  else if (event.key === '-') axis.zoom(1 / 0.6);
  else return;
  event.preventDefault();
}

function nextStepStart(recording, at, forward) {
  const starts = [0, ...recording.steps.map((step) => step.first + 1), recording.states - 1];
  const beyond = starts.filter((start) => (start - at) * forward > 0);
  if (beyond.length === 0) return at;
  return forward > 0 ? Math.min(...beyond) : Math.max(...beyond);
}

// Lines at the pointer and at the chosen instant, in each chart with this axis.
function drawAxisCursor(context, chart, axis, state, width, height) {
  const line = (x, colour, dash) => {
    if (x < AXIS_PADDING.left - 1 || x > width - AXIS_PADDING.right + 1) return;
    context.strokeStyle = colour;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, 0);
    context.lineTo(Math.round(x) + 0.5, height - 18);
    context.stroke();
    context.setLineDash([]);
  };
  const shade = (from, to, alpha) => {
    context.fillStyle = colours.accent;
    context.globalAlpha = alpha;
    context.fillRect(from, 0, to - from, height - 18);
    context.globalAlpha = 1;
  };
  const { window: chosen } = state.values;
  if (chosen) {
    const [from, to] = chosen.map((s) => clampX(axis.xOfState(s, width), width));
    shade(from, to, 0.12);
    line(axis.xOfState(chosen[0], width), colours.accent, []);
  }
  line(axis.xOfState(state.values.at, width), colours.accent, []);
  if (chart.hoverX !== null && chart.hoverX !== undefined) line(chart.hoverX, colours.muted, [3, 3]);
  if (chart.brush) shade(chart.brush[0], chart.brush[1], 0.18);
}
