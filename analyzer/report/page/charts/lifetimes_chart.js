// The largest buffers as bars from birth to death.

const LIFETIME_ROW = 15;
const LIFETIME_ROWS = 60;

function createLifetimes(container, recording, axis, state) {
  const { columns } = recording;
  const chartBox = element('div', { class: 'chart' });
  const key = element('p', { class: 'note' });
  container.append(key, chartBox);
  let rows = [];

  function chooseRows() {
    const [first, last] = axis.visibleStates();
    const candidates = [];
    const least = state.values.isSmallShown ? 0 : LEAST_SHARE * recording.total[recording.highestState];
    for (let b = 0; b < recording.buffers && columns.born[b] <= last; b += 1) {
      if (columns.dies[b] > first && columns.dies[b] - columns.born[b] > 1 && columns.requested[b] >= least) candidates.push(b);
    }
    const sizes = Float64Array.from(candidates, (b) => columns.requested[b]).sort();
    const enough = sizes[Math.max(0, sizes.length - LIFETIME_ROWS)];
    const largest = candidates.filter((b) => columns.requested[b] >= enough);
    rows = largest.sort((a, b) => columns.requested[b] - columns.requested[a]).slice(0, LIFETIME_ROWS);
    // Always show the chosen tensor if it is alive in the part in view.
    const b = state.values.buffer;
    const isAway = b !== null && (columns.born[b] > last || columns.dies[b] <= first);
    if (b !== null && !isAway && !rows.includes(b)) rows.push(b);
    key.textContent = `The largest buffers of the part in view, up to ${LIFETIME_ROWS}, in order of birth${least ? ', without those below 0.1 % of all bytes' : ''}.${
      isAway ? ' The chosen tensor is not alive in the part in view.' : b !== null ? ' The chosen tensor is marked.' : ''}`;
    rows.sort((a, b) => columns.born[a] - columns.born[b] || columns.requested[b] - columns.requested[a]);
    chart.setHeight(Math.max(60, rows.length * LIFETIME_ROW + 24));
  }

  function draw(context, width, height) {
    context.textAlign = 'left';
    const left = AXIS_PADDING.left;
    const right = width - AXIS_PADDING.right;
    rows.forEach((b, row) => {
      const y = row * LIFETIME_ROW + 2;
      const from = clampX(axis.xOfState(columns.born[b], width), width);
      const to = Math.max(from + 1, clampX(axis.xOfState(columns.dies[b], width), width));
      const isChosen = b === state.values.buffer;
      if (isChosen) {
        context.fillStyle = colours.accent;
        context.globalAlpha = 0.18;
        context.fillRect(0, y - 2, width, LIFETIME_ROW);
        context.globalAlpha = 1;
        context.fillRect(0, y - 2, 4, LIFETIME_ROW);
      }
      context.fillStyle = colours.category[columns.category[b]];
      context.fillRect(from, y, to - from, LIFETIME_ROW - 4);
      if (isChosen) {
        context.strokeStyle = colours.accent;
        context.lineWidth = 2;
        context.strokeRect(from - 1, y - 1, to - from + 2, LIFETIME_ROW - 2);
      }
      drawLifetimeLabel(context, recording, b, from, to, y + LIFETIME_ROW / 2 - 2, right);
      context.fillStyle = isChosen ? colours.ink : colours.muted;
      context.textAlign = 'right';
      context.fillText(formatBytes(columns.requested[b]), left - 6, y + LIFETIME_ROW / 2 - 2);
      context.textAlign = 'left';
    });
    drawAxisLabels(context, axis, recording, width, height - 8);
  }

  const chart = createCanvas(chartBox, {
    height: 120, label: 'Lifetimes of the largest buffers. The view of tensors lists them.', draw,
    overlay: (context, width, height) => {
      drawMarked(context, width);
      drawAxisCursor(context, chart, axis, state, width, height);
    },
  });

  function drawMarked(context, width) {
    const marked = new Set(state.values.marked);
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    rows.forEach((b, row) => {
      if (marked.has(b)) context.strokeRect(AXIS_PADDING.left - 1, row * LIFETIME_ROW + 1, width - AXIS_PADDING.left - AXIS_PADDING.right + 2, LIFETIME_ROW - 2);
    });
    context.lineWidth = 1;
  }
  const bufferAt = (y) => rows[Math.floor(y / LIFETIME_ROW)];
  attachAxisGestures(chart, axis, recording, state, {
    pick: (x, y) => { const b = bufferAt(y); if (b !== undefined) state.update({ buffer: b }); },
    hover: (x, y, event) => {
      const b = bufferAt(y);
      markBuffers(state, b === undefined ? [] : [b]);
      if (b === undefined) hideTooltip(); else showTooltip(event, recording.nameOf(b), lifetimeLines(recording, b));
    },
  });

  container.prepend(element('div', { class: 'controls chart-files' }, chartButtons(chart, 'lifetimes')));

  return {
    chart, mark: chart.redrawOverlay, rows: () => rows,
    update(keys) {
      if (keys.has('at') && keys.size === 1) { chart.redrawOverlay(); return; }
      chooseRows();
      chart.redraw();
    },
  };
}

// The name of a tensor in its bar, or behind it, or before it, where there is most room.
function drawLifetimeLabel(context, recording, b, from, to, y, right) {
  const inside = to - from > 150;
  const before = !inside && from - AXIS_PADDING.left > right - to;
  const room = inside ? to - from - 10 : before ? from - AXIS_PADDING.left - 8 : right - to - 8;
  context.textAlign = before ? 'right' : 'left';
  context.fillStyle = inside ? inkOn(colours.category[recording.columns.category[b]]) : colours.ink;
  if (room > 40) context.fillText(fitText(context, shortName(recording.nameOf(b), 80), room), inside ? from + 6 : before ? from - 5 : to + 5, y);
  context.textAlign = 'left';
}

function lifeText({ columns, states }, b) {
  const born = columns.born[b] === 0 ? 'before the first event' : `instant ${formatCount(columns.born[b] - 1)}`;
  return `born ${born}, ${columns.dies[b] >= states ? 'not freed' : `freed at ${formatCount(columns.dies[b] - 1)}`}`;
}

function lifetimeLines(recording, b) {
  const { columns } = recording;
  /** @type {(string | any[])[]} */
  const lines = [[recording.categories[columns.category[b]], 'requested', columns.requested[b]], [null, 'allocated', columns.allocated[b]]];
  lines.push(lifeText(recording, b));
  for (const column of ['layer', 'shape', 'why']) if (recording.textOf(column, b)) lines.push(recording.textOf(column, b));
  return lines;
}
