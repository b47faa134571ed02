// From the model to its layers to their ops, or from files to lines to ops, as an icicle.

const ICICLE_ROW = 22;
const ICICLE_MEASURES = [
  ['instant', 'Alive at the instant'], ['activation', 'Activations at the instant'],
  ['parameter', 'Parameters at the instant'], ['bytetime', 'Bytes × time, in view'],
];

function createIcicle(container, recording, axis, state) {
  let root = null;
  let focus = null;
  let boxes = [];
  let hovered = null;
  const rowsOf = () => (focus ? focus.children : []);

  const crumbs = element('nav', { class: 'crumbs', 'aria-label': 'Path in the chart' });
  const chartBox = element('div', { class: 'chart' });
  const controls = element('div', { class: 'controls' });
  const unit = element('p', { class: 'note' });
  const table = createTable({
    name: 'Parts of the chosen layer', rows: rowsOf, initialSort: { key: 'bytes', descending: true },
    onPick: (node) => { if (node.children.length) { focus = node; show(); } else if (node.buffer !== null) state.update({ buffer: node.buffer }); },
    columns: [
      { key: 'name', label: 'Part', kind: 'text', grow: true, value: (node) => node.name },
      { key: 'bytes', label: 'Bytes', csv: 'bytes', kind: 'size', value: (node) => node.bytes },
      { key: 'share', label: 'Share of all', kind: 'count', value: (node) => node.bytes, format: (bytes) => formatShare(bytes, root.bytes) },
      { key: 'buffers', label: 'Buffers', kind: 'count', value: (node) => node.buffers },
    ],
  });
  container.append(controls, unit, crumbs, chartBox, table.root);

  function draw(context, width) {
    boxes = [];
    if (!focus || !focus.bytes) {
      context.fillStyle = colours.muted;
      context.fillText('Nothing to show at this instant.', 10, 16);
      return;
    }
    place(focus, 0, width, 0);
    for (const { node, x, w, depth } of boxes) {
      context.fillStyle = node === hovered ? colours.accent : colours.category[node.topCategory];
      if (depth === 0 && node !== hovered) context.fillStyle = colours.band;
      context.fillRect(x, depth * ICICLE_ROW, Math.max(0.5, w - 1), ICICLE_ROW - 1);
      if (w < 34) continue;
      const label = fitText(context, `${node.name}  ${formatBytes(node.bytes)}`, w - 12);
      context.fillStyle = depth === 0 && node !== hovered ? colours.ink : inkOn(context.fillStyle);
      context.textAlign = 'left';
      context.fillText(label, x + 6, depth * ICICLE_ROW + ICICLE_ROW / 2);
    }
  }

  function place(node, x, w, depth) {
    boxes.push({ node, x, w, depth });
    let left = x;
    for (const child of node.children) {
      const childWidth = w * child.bytes / node.bytes;
      if (childWidth >= 0.4) place(child, left, childWidth, depth + 1);
      left += childWidth;
    }
  }

  const depthOf = (node) => 1 + node.children.reduce((most, child) => Math.max(most, depthOf(child)), 0);
  const chart = createCanvas(chartBox, { height: 120, label: 'Bytes by layer and op. The table below has the same parts.', draw, focusable: false });

  function boxAt(event) {
    const bounds = chart.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    const depth = Math.floor((event.clientY - bounds.top) / ICICLE_ROW);
    return boxes.find((box) => box.depth === depth && box.x <= x && x < box.x + box.w) || null;
  }
  chart.canvas.addEventListener('pointermove', (event) => {
    const box = boxAt(event);
    if (hovered !== (box && box.node)) { hovered = box && box.node; chart.redraw(); }
    if (box) showTooltip(event, box.node.name, [[null, 'bytes', box.node.bytes], `${formatShare(box.node.bytes, root.bytes)} of all, ${formatCount(box.node.buffers)} buffers`]);
    else hideTooltip();
  });
  chart.canvas.addEventListener('pointerleave', () => { hovered = null; hideTooltip(); chart.redraw(); });
  chart.canvas.addEventListener('click', (event) => {
    const box = boxAt(event);
    if (!box) return;
    if (box.node.children.length === 0) { if (box.node.buffer !== null) state.update({ buffer: box.node.buffer }); return; }
    focus = box.node === focus && focus.parent ? focus.parent : box.node;
    show();
  });

  function show() {
    const path = [];
    for (let node = focus; node; node = node.parent) path.unshift(node);
    crumbs.replaceChildren(...path.map((node) => element('button', { type: 'button', class: 'link', text: shortName(node.name, 60), 'aria-current': node === focus ? 'true' : null, onclick: () => { focus = node; show(); } })));
    chart.setHeight(Math.min(14, depthOf(focus)) * ICICLE_ROW + 2);
    chart.redraw();
    table.update();
  }

  function renderControls() {
    controls.replaceChildren(
      selectElement('What is measured', ICICLE_MEASURES, state.values.measure, (measure) => state.update({ measure })),
      selectElement('Grouped by', [['layer', 'by layer'], ['source', 'by source line']], state.values.layerMode, (layerMode) => state.update({ layerMode })));
    unit.textContent = state.values.measure === 'bytetime'
      ? `Requested bytes times the ${axis.isTime() ? 'seconds' : 'events'} they are held, for the part of the timeline in view, divided by its length: the average bytes held.`
      : `Requested bytes at ${describeInstant(recording, state.values.at)}.`;
  }

  return {
    chart,
    update(keys) {
      const path = [];
      for (let node = focus; node && node.parent; node = node.parent) path.unshift(node.name);
      if (keys.has('shown') || keys.has('at') || keys.has('measure') || keys.has('layerMode') || (keys.has('viewKey') && state.values.measure === 'bytetime')) {
        root = buildTree(recording, axis, state.values);
        focus = root;
        for (const name of keys.has('layerMode') ? [] : path) {
          const child = focus.children.find((candidate) => candidate.name === name);
          if (!child) break;
          focus = child;
        }
        renderControls();
        show();
      } else chart.redraw();
    },
    focusSearch: () => table.focusSearch(),
    reset() { focus = root; show(); table.reset(); },
    table,
    focusName: () => focus.name,
  };
}

function buildTree(recording, axis, { at, measure, layerMode }) {
  const root = treeNode(measure === 'bytetime' ? 'all, on average' : 'all', null);
  const shownCategories = { activation: ['activation'], parameter: ['parameter', 'optimizer_state'] }[measure];
  for (const [b, bytes] of measuredBuffers(recording, axis, at, measure)) {
    const code = recording.categoryAt(b, measure === 'bytetime' ? recording.states : at);
    if (shownCategories && !shownCategories.includes(recording.categories[code])) continue;
    let node = root;
    addTo(node, bytes, code);
    for (const part of pathOf(recording, b, layerMode)) {
      let child = node.byName.get(part);
      if (!child) { child = treeNode(part, node); node.byName.set(part, child); }
      node = child;
      addTo(node, bytes, code);
    }
    node.buffer ??= b;
  }
  finishTree(root);
  return root;
}

const treeNode = (name, parent) => ({ name, parent, bytes: 0, buffers: 0, byName: new Map(), children: [], byCategory: new Map(), topCategory: 0, buffer: null });

function addTo(node, bytes, code) {
  node.bytes += bytes;
  node.buffers += 1;
  node.byCategory.set(code, (node.byCategory.get(code) || 0) + bytes);
}

function finishTree(node) {
  let most = -1;
  for (const [code, bytes] of node.byCategory) if (bytes > most) { most = bytes; node.topCategory = code; }
  node.children = [...node.byName.values()].sort((a, b) => b.bytes - a.bytes);
  node.byName = node.byCategory = null;
  node.children.forEach(finishTree);
}

function* measuredBuffers(recording, axis, at, measure) {
  const { born, dies, requested } = recording.columns;
  if (measure !== 'bytetime') {
    for (const b of recording.aliveAt(at)) yield [b, requested[b]];
    return;
  }
  const [from, to] = axis.view;
  for (let b = 0; b < born.length; b += 1) {
    const held = Math.min(to, axis.positionOf(dies[b])) - Math.max(from, axis.positionOf(born[b]));
    if (held > 0) yield [b, requested[b] * held / (to - from)];
  }
}

function pathOf(recording, b, layerMode) {
  const op = recording.textOf('op', b) || recording.nameOf(b);
  if (layerMode === 'source') {
    const source = recording.textOf('source', b);
    if (!source) return ['(no source line)', op];
    const colon = source.lastIndexOf(':');
    return colon > 0 ? [source.slice(0, colon), `line ${source.slice(colon + 1)}`, op] : [source, op];
  }
  const layer = recording.textOf('layer', b);
  // Without a layer the scopes in the op's name are the next best thing.
  return layer ? [...layer.split('/', 12), op] : ['(no layer)', ...op.split('/', 12)];
}
