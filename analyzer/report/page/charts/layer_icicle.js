// An icicle chart: model, blocks, layers, ops and variables; or files, lines and ops.

const ICICLE_ROW = 22;
const LEAST_BOX = 0.4; // of the boxes that are drawn, in pixels
const ICICLE_MEASURES = [
  ['instant', 'Alive at the instant'], ['activation', 'Activations at the instant'],
  ['parameter', 'Parameters at the instant'], ['bytetime', 'Bytes × time, in view'],
];
const PART_SEPARATOR = ' › ';

function createIcicle(container, recording, axis, state) {
  let root = null;
  let focus = null;
  let boxes = [];
  let hovered = null;
  const order = layerOrder(recording);
  const choose = (node) => state.update({ part: partOf(node) });

  const crumbs = element('nav', { class: 'crumbs', 'aria-label': 'Path in the chart' });
  const chartBox = element('div', { class: 'chart' });
  const controls = element('div', { class: 'controls' });
  const unit = element('p', { class: 'note' });
  const table = stateTable(state, {
    name: 'Parts of the chosen layer', rows: () => (focus ? focus.children : []), initialSort: { key: 'bytes', descending: true },
    onPick: (node) => { if (node.children.length) choose(node); else if (node.buffer !== null) state.update({ buffer: node.buffer }); },
    bufferOf: (node) => (node.children.length ? null : node.buffer),
    buffersOf: membersOf,
    isSmall: (node) => node.bytes < LEAST_SHARE * root.bytes,
    columns: [
      { key: 'name', label: 'Part', kind: 'text', grow: true, value: (node) => node.key },
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
    const marked = new Set(state.values.marked);
    for (const box of boxes) {
      const { node, x, w, depth } = box;
      const isPicked = !node.children.length && node.buffer !== null && node.buffer === state.values.buffer;
      const fill = node === hovered ? colours.accent : depth === 0 ? colours.band : colours.category[node.topCategory];
      context.fillStyle = fill;
      context.fillRect(x, depth * ICICLE_ROW, Math.max(0.5, w - 1), ICICLE_ROW - 1);
      const isMarked = node !== hovered && node.members.some((b) => marked.has(b));
      if (isPicked || isMarked) { context.strokeStyle = colours.ink; context.strokeRect(x + 1, depth * ICICLE_ROW + 1, Math.max(1, w - 3), ICICLE_ROW - 3); }
      box.text = w < 16 ? '' : boxLabel(context, node, w - 8);
      context.fillStyle = inkOn(fill);
      context.textAlign = 'left';
      context.fillText(box.text, x + 4, depth * ICICLE_ROW + ICICLE_ROW / 2);
    }
  }

  function place(node, x, w, depth) {
    boxes.push({ node, x, w, depth });
    let left = x;
    for (const child of node.children) {
      const childWidth = w * child.bytes / node.bytes;
      if (childWidth >= LEAST_BOX) place(child, left, childWidth, depth + 1);
      left += childWidth;
    }
  }

  // Number of rows with boxes that are wide enough to draw.
  const depthOf = (node, w) => 1 + node.children.reduce((most, child) => {
    const childWidth = w * child.bytes / node.bytes;
    return childWidth >= LEAST_BOX ? Math.max(most, depthOf(child, childWidth)) : most;
  }, 0);
  const chart = createCanvas(chartBox, { height: 120, label: 'Bytes by layer and op. The table below has the same parts.', draw, focusable: false });

  function boxAt(event) {
    const bounds = chart.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left;
    const depth = Math.floor((event.clientY - bounds.top) / ICICLE_ROW);
    return boxes.find((box) => box.depth === depth && box.x <= x && x < box.x + box.w) || null;
  }
  chart.canvas.addEventListener('pointermove', (event) => {
    const box = boxAt(event);
    if (hovered !== (box && box.node)) {
      hovered = box && box.node;
      markBuffers(state, hovered ? membersOf(hovered) : []);
      chart.redraw();
    }
    if (box) showTooltip(event, box.node.key, [[null, 'bytes', box.node.bytes], `${formatShare(box.node.bytes, root.bytes)} of all, ${formatCount(box.node.buffers)} ${box.node.buffers === 1 ? 'buffer' : 'buffers'}`]);
    else hideTooltip();
  });
  chart.canvas.addEventListener('pointerleave', () => { hovered = null; markBuffers(state, []); hideTooltip(); chart.redraw(); });
  chart.canvas.addEventListener('click', (event) => {
    const box = boxAt(event);
    if (!box) return;
    if (box.node.children.length === 0) { if (box.node.buffer !== null) state.update({ buffer: box.node.buffer }); return; }
    choose(box.node === focus && focus.parent ? focus.parent : box.node);
  });

  function show() {
    focus = findPart(root, state.values.part);
    const path = [];
    for (let node = focus; node; node = node.parent) path.unshift(node);
    crumbs.replaceChildren(...path.map((node) => element('button', { type: 'button', class: 'link', text: shortName(node.key, 60), 'aria-current': node === focus ? 'true' : null, onclick: () => choose(node) })));
    chart.setHeight(Math.min(14, depthOf(focus, chartBox.clientWidth || 1000)) * ICICLE_ROW + 2);
    chart.redraw();
    table.update();
  }

  const measureSelect = selectElement('What is measured', ICICLE_MEASURES, state.values.measure, (measure) => state.update({ measure }));
  const modeSelect = selectElement('Grouped by', [['layer', 'by layer'], ['source', 'by source line']], state.values.layerMode, (layerMode) => state.update({ layerMode, part: '' }));
  controls.append(measureSelect, modeSelect, ...chartButtons(chart, 'layers'));

  function renderControls() {
    const { measure, layerMode, at, window } = state.values;
    measureSelect.value = measure;
    modeSelect.value = layerMode;
    unit.textContent = unbroken(measure === 'bytetime'
      ? `Average requested bytes over the ${axis.isTime() ? 'time' : 'events'} in view.`
      : `Requested bytes ${window ? 'of the window' : `at ${describeInstant(recording, at)}`}${layerMode === 'layer' ? ', layers in the order of the model' : ''}.`);
  }

  return {
    chart,
    mark() { chart.redraw(); table.mark(); },
    update(keys) {
      if (keys.has('shown') || keys.has('at') || keys.has('window') || keys.has('isSmallShown') || keys.has('measure') || keys.has('layerMode') || (keys.has('viewKey') && state.values.measure === 'bytetime')) {
        root = buildTree(recording, axis, state.values, order);
        renderControls();
        show();
      } else if (keys.has('part')) show();
      else { chart.redraw(); if (keys.has('buffer')) table.repaint(); }
    },
    focusSearch: () => table.focusSearch(),
    reset: () => table.reset(),
    table,
    focusName: () => focus.key,
    boxes: () => boxes,
  };
}

// The longest name of a part that fits with its bytes, else a name alone: a number is never cut.
function boxLabel(context, node, width) {
  const names = [node.label, node.label.slice(node.label.lastIndexOf('/') + 1)].map((name) => shortName(name, 120));
  const fits = (text) => context.measureText(text).width <= width;
  return names.map((name) => `${name}  ${formatBytes(node.bytes)}`).find(fits) ?? names.find(fits) ?? fitText(context, names[1], width);
}

function partOf(node) {
  const keys = [];
  for (let at = node; at.parent; at = at.parent) keys.unshift(at.key);
  return keys.join(PART_SEPARATOR);
}

// The node of a path, or its last ancestor that exists at this instant.
function findPart(root, part) {
  let node = root;
  let rest = part;
  while (rest) {
    const next = node.children.find(({ key, children }) => children.length && (rest === key || rest.startsWith(key + PART_SEPARATOR)));
    if (!next) break;
    node = next;
    rest = rest.slice(next.key.length + PART_SEPARATOR.length);
  }
  return node;
}

// The buffers of a part and of the parts in it.
const membersOf = (node) => [...node.members, ...node.children.flatMap(membersOf)];

function buildTree(recording, axis, values, order) {
  const { at, measure, layerMode } = values;
  const root = treeNode(measure === 'bytetime' ? 'all, on average' : 'all');
  const shownCategories = { activation: ['activation'], parameter: ['parameter', 'optimizer_state'] }[measure];
  for (const [b, bytes] of measuredBuffers(recording, axis, values)) {
    const code = recording.categoryAt(b, measure === 'bytetime' ? recording.states : at);
    if (shownCategories && !shownCategories.includes(recording.categories[code])) continue;
    const place = order.get(recording.columns.layer[b]);
    let node = root;
    addTo(node, bytes, code, place);
    for (const { key, isLayer } of pathOf(recording, b, layerMode)) {
      let child = node.byName.get(key);
      if (!child) { child = treeNode(key, key, isLayer); node.byName.set(key, child); }
      node = child;
      addTo(node, bytes, code, place);
    }
    node.buffer ??= b;
    node.members.push(b);
  }
  finishTree(root, null);
  return root;
}

const treeNode = (key, label = key, isLayer = false) => ({ key, label, isLayer, parent: null, bytes: 0, buffers: 0, order: Infinity, byName: new Map(), children: [], byCategory: new Map(), topCategory: 0, buffer: null, members: [] });

function addTo(node, bytes, code, place) {
  node.bytes += bytes;
  node.buffers += 1;
  node.order = Math.min(node.order, place);
  node.byCategory.set(code, (node.byCategory.get(code) || 0) + bytes);
}

function groupNode(key, label, children) {
  const node = treeNode(key, label, true);
  for (const child of children) {
    node.bytes += child.bytes;
    node.buffers += child.buffers;
    for (const [code, bytes] of child.byCategory) node.byCategory.set(code, (node.byCategory.get(code) || 0) + bytes);
  }
  node.order = children.reduce((most, child) => (child.bytes > most.bytes ? child : most)).order;
  node.children = children;
  return node;
}

// Blocks of layers in the order of the model, then everything else, largest first.
function finishTree(node, parent) {
  node.parent = parent;
  let most = -1;
  for (const [code, bytes] of node.byCategory) if (bytes > most) { most = bytes; node.topCategory = code; }
  if (node.byName.size) {
    const children = [...node.byName.values()];
    const layers = children.filter(({ isLayer }) => isLayer).sort((a, b) => a.order - b.order);
    const others = children.filter(({ isLayer }) => !isLayer).sort((a, b) => b.bytes - a.bytes);
    node.children = [...gatherBlocks(layers), ...others];
  }
  node.children.forEach((child) => finishTree(child, node));
}

// Group layers by the first word with a number in their names: block2a_conv and block2a_bn form block2a,
// conv2_block1_add lies in block1 of conv2.
function gatherBlocks(nodes) {
  const blocks = new Map();
  for (const node of nodes) {
    const [, block, rest] = /^(.*?\d+[a-z]?)_(.+)$/.exec(node.label) || [];
    const key = block || `${node.label} alone`;
    if (!blocks.has(key)) blocks.set(key, { block, members: [], rests: [] });
    blocks.get(key).members.push(node);
    blocks.get(key).rests.push(rest);
  }
  return [...blocks.values()].flatMap(({ block, members, rests }) => {
    if (!block || members.length < 2 || members.length === nodes.length) return members;
    members.forEach((node, place) => { node.label = rests[place]; });
    return [groupNode(members[0].key.slice(0, members[0].key.length - rests[0].length - 1), block, gatherBlocks(members))];
  });
}

// The place of each layer in the model: the birth of its largest activation; a layer without activations
// follows the layer that was built before it.
function layerOrder(recording) {
  const { category, layer, requested } = recording.columns;
  const activation = recording.categories.indexOf('activation');
  const built = new Map();
  const largest = new Map();
  for (let b = 0; b < recording.buffers; b += 1) {
    if (!built.has(layer[b])) built.set(layer[b], built.size);
    if (category[b] !== activation) continue;
    const known = largest.get(layer[b]);
    if (known === undefined || requested[b] > requested[known]) largest.set(layer[b], b);
  }
  let before = -1;
  const places = [...built].map(([code, place]) => {
    before = largest.get(code) ?? before;
    return { code, place, at: largest.has(code) ? before : before + 0.5 };
  });
  places.sort((a, b) => a.at - b.at || a.place - b.place);
  return new Map(places.map(({ code }, place) => [code, place]));
}

function* measuredBuffers(recording, axis, values) {
  const { born, dies, requested } = recording.columns;
  if (values.measure !== 'bytetime') {
    for (const b of listedBuffers(recording, values)) yield [b, requested[b]];
    return;
  }
  const [from, to] = axis.view;
  for (let b = 0; b < born.length; b += 1) {
    const held = Math.min(to, axis.positionOf(dies[b])) - Math.max(from, axis.positionOf(born[b]));
    if (held > 0) yield [b, requested[b] * held / (to - from)];
  }
}

const part = (key, isLayer = false) => ({ key, isLayer });

// The path of a buffer through the tree: source file, line and op, or layer by layer and op.
function pathOf(recording, b, layerMode) {
  const { textOf } = recording;
  const leaf = textOf('variable', b) || textOf('op', b) || recording.nameOf(b);
  const layer = textOf('layer', b);
  if (layerMode === 'source') {
    const [, file, line] = /^(.+):(\d+)$/.exec(textOf('source', b)) || [];
    return [...(file ? [part(file), part(`line ${line}`)] : [part(textOf('source', b) || '(no source line)')]), part(leaf)];
  }
  if (!layer) return [part('(no layer)'), ...leaf.split('/', 12).map((key) => part(key))];
  return [...layer.split('/', 12).map((key) => part(key, true)), part(leaf)];
}
