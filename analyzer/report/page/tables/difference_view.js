// The difference of two steps: both curves, and a table by layer or op.

function createCompare(container, comparison, state) {
  const { a, b, timelines } = comparison;
  const summary = element('table', { class: 'plain compare' },
    element('thead', {}, element('tr', {}, ...[['', ''], ['difference', ''], ['first', a.label], ['second', b.label]].map(([text, title]) => element('th', { scope: 'col', text, title: title.slice(0, 2000) })))),
    element('tbody', {}, comparison.peak.map((row, place) => compareRow(row.number, row, `peak.${place}`)), comparison.categories.map((row, place) => compareRow(CATEGORY_LABELS[row.category] || row.category, row, `categories.${place}`, row.category))));
  const notes = comparison.notes.map((text) => element('p', { class: 'note', text: unbroken(text) }));
  const chartBox = element('div', { class: 'chart' });
  let grouping = 'layers';
  let table = null;
  const tableBox = element('div');
  const switcher = element('div', { class: 'controls' }, selectElement('Compared by', [['layers', 'by layer'], ['ops', 'by op']], 'layers', (value) => { grouping = value; build(); }));
  container.append(...notes, summary, element('h3', { text: 'The steady step of both, requested bytes' }),
    element('p', { class: 'legend' }, element('span', { class: 'key curve-a', text: `first: ${a.label.slice(0, 200)}` }), element('span', { class: 'key curve-b', text: `second: ${b.label.slice(0, 200)}` })),
    chartBox, switcher, tableBox);

  const highest = Math.max(1, ...timelines.a.requested_bytes, ...timelines.b.requested_bytes);
  function draw(context, width, height) {
    const left = AXIS_PADDING.left;
    const inner = width - left - AXIS_PADDING.right;
    const toY = (bytes) => 6 + (1 - bytes / (highest * 1.05)) * (height - 26);
    drawGrid(context, width, highest, toY);
    for (const [curve, colour, dash] of [[timelines.a, colours.limit, [5, 3]], [timelines.b, colours.accent, []]]) {
      context.strokeStyle = colour;
      context.lineWidth = 1.6;
      context.setLineDash(dash);
      context.beginPath();
      curve.requested_bytes.forEach((bytes, i) => {
        const x = left + curve.progress_ratio[i] * inner;
        // Bytes stay the same until the next instant.
        if (i === 0) context.moveTo(x, toY(bytes)); else context.lineTo(x, toY(curve.requested_bytes[i - 1]));
        context.lineTo(x, toY(bytes));
      });
      context.stroke();
      context.setLineDash([]);
      context.lineWidth = 1;
    }
    context.fillStyle = colours.muted;
    context.textAlign = 'left';
    context.fillText('start of the step', left, height - 8);
    context.textAlign = 'right';
    context.fillText('end', width - AXIS_PADDING.right, height - 8);
  }
  const chart = createCanvas(chartBox, { height: 220, label: 'Requested bytes over the steady step of both runs; the table above has their peaks.', draw, focusable: false });

  function build() {
    table = stateTable(state, {
      name: `Difference ${grouping === 'layers' ? 'by layer' : 'by op'}`, rows: () => comparison[grouping],
      initialSort: { key: 'distance', descending: true },
      filters: [{ label: 'change', value: (row) => row.change }, ...(grouping === 'ops' ? [{ label: 'type', value: (row) => row.type || '' }] : [])],
      columns: [
        { key: 'name', label: grouping === 'layers' ? 'Layer' : 'Op', kind: 'text', grow: true, value: (row) => row.name || '(no layer)' },
        { key: 'delta', label: 'Difference', csv: 'delta_bytes', kind: 'count', value: (row) => row.delta_bytes, format: formatDelta },
        { key: 'a', label: 'First', csv: 'a_bytes', kind: 'size', title: a.label.slice(0, 400), value: (row) => row.a_bytes },
        { key: 'b', label: 'Second', csv: 'b_bytes', kind: 'size', title: b.label.slice(0, 400), value: (row) => row.b_bytes },
        { key: 'distance', label: 'Distance', csv: 'distance_bytes', kind: 'size', sum: false, hidden: true, value: (row) => Math.abs(row.delta_bytes) },
        { key: 'change', label: 'Change', kind: 'short', value: (row) => row.change },
      ],
    });
    tableBox.replaceChildren(table.root);
    table.update();
  }
  build();
  return { chart, update: chart.redraw, get table() { return table; } };
}

function compareRow(label, row, path, category = null) {
  const size = (bytes, key) => (bytes === null ? '–' : sizeElement(bytes, `comparison.${path}.${key}`));
  const changed = row.delta_bytes !== 0;
  const sense = row.delta_bytes > 0 ? 'more' : row.delta_bytes < 0 ? 'less' : 'same';
  const delta = row.delta_bytes === null ? '–' : element('span', { class: `delta num ${sense}`, title: formatExactBytes(row.delta_bytes) },
    element('span', { text: changed ? formatDelta(row.delta_bytes) : 'same' }), ' ', element('span', { text: formatGrowth(row.delta_bytes, row.a_bytes) }));
  return element('tr', {}, element('th', { scope: 'row' }, category ? swatchElement(category) : null, ` ${label}`), element('td', {}, delta), element('td', {}, size(row.a_bytes, 'a_bytes')), element('td', {}, size(row.b_bytes, 'b_bytes')));
}

// The difference in percent, or as a factor from 10 times on; empty for a tiny one.
function formatGrowth(deltaBytes, fromBytes) {
  const ratio = fromBytes ? deltaBytes / fromBytes : 0;
  if (Math.abs(ratio) < 0.0005) return '';
  return ratio < 10 ? `(${ratio > 0 ? '+' : '−'}${Math.abs(100 * ratio).toFixed(1)}\u00a0%)` : `(${(1 + ratio).toFixed(0)}\u00a0×)`;
}
