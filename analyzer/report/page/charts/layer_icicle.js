// An icicle chart: model, blocks, layers, ops and variables; or files, lines and ops.

const ICICLE_ROW = 22;
const LEAST_BOX = 0.4; // pixels of a box that is drawn
const LEAST_PARENT = 3; // pixels of a box whose parts are drawn
const PART_SEPARATOR = ' › ';

function createIcicle(container, recording, state) {
  let root = null;
  let focus = null;
  let boxes = [];
  let hovered = null;
  const order = layerOrder(recording);
  const paths = { layer: createPaths(recording, 'layer'), source: createPaths(recording, 'source') };
  const choose = (node) => state.update({ part: partOf(node) });
  const pick = (node) => { if (node.isLeaf) state.update({ buffer: node.buffer }); else choose(node); };

  const crumbs = element('nav', { class: 'crumbs', 'aria-label': 'Path in the chart' });
  const chartBox = element('div', { class: 'chart' });
  const controls = element('div', { class: 'controls' });
  const unit = element('p', { class: 'note' });
  const table = stateTable(state, {
    name: 'Parts of the chosen layer', rows: () => (focus ? focus.children : []), initialSort: { key: 'bytes', descending: true },
    onPick: pick,
    bufferOf: (node) => (node.isLeaf ? node.buffer : null),
    buffersOf: (node) => node.members,
    isSmall: (node) => node.bytes < LEAST_SHARE * root.bytes,
    columns: [
      { key: 'name', label: 'Part', kind: 'text', grow: true, value: (node) => node.key },
      { key: 'bytes', label: 'Bytes', csv: 'bytes', kind: 'size', value: (node) => node.bytes },
      { key: 'share', label: 'Share of all', kind: 'count', value: (node) => node.bytes, format: (bytes) => formatShare(bytes, root.bytes) },
      { key: 'buffers', label: 'Buffers', kind: 'count', value: (node) => node.members.length },
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
      const isPicked = node.isLeaf && node.buffer === state.values.buffer;
      const fill = node === hovered ? colours.accent : depth === 0 ? colours.band : colours.category[node.topCategory];
      context.fillStyle = fill;
      context.fillRect(x, depth * ICICLE_ROW, Math.max(0.5, w - 1), ICICLE_ROW - 1);
      const isMarked = node !== hovered && (node.isLeaf || w < LEAST_PARENT) && node.members.some((b) => marked.has(b));
      if (isPicked || isMarked) { context.strokeStyle = colours.ink; context.strokeRect(x + 1, depth * ICICLE_ROW + 1, Math.max(1, w - 3), ICICLE_ROW - 3); }
      box.text = w < 16 ? '' : boxLabel(context, node, w - 8);
      context.fillStyle = inkOn(fill);
      context.textAlign = 'left';
      context.fillText(box.text, x + 4, depth * ICICLE_ROW + ICICLE_ROW / 2);
    }
  }

  function place(node, x, w, depth) {
    boxes.push({ node, x, w, depth });
    if (w < LEAST_PARENT) return;
    let left = x;
    for (const child of node.children) {
      const childWidth = w * child.bytes / node.bytes;
      if (childWidth >= LEAST_BOX) place(child, left, childWidth, depth + 1);
      left += childWidth;
    }
  }

  // Number of rows with boxes that are wide enough to draw.
  const depthOf = (node, w) => 1 + (w < LEAST_PARENT ? 0 : node.children.reduce((most, child) => {
    const childWidth = w * child.bytes / node.bytes;
    return childWidth >= LEAST_BOX ? Math.max(most, depthOf(child, childWidth)) : most;
  }, 0));
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
      markBuffers(state, hovered ? hovered.members : []);
      chart.redraw();
    }
    if (box) showTooltip(event, box.node.key, [[null, 'bytes', box.node.bytes], `${formatShare(box.node.bytes, root.bytes)} of all, ${formatCount(box.node.members.length)} ${box.node.members.length === 1 ? 'buffer' : 'buffers'}`]);
    else hideTooltip();
  });
  chart.canvas.addEventListener('pointerleave', () => { hovered = null; markBuffers(state, []); hideTooltip(); chart.redraw(); });
  chart.canvas.addEventListener('click', (event) => {
    const box = boxAt(event);
    if (box) pick(box.node === focus && focus.parent ? focus.parent : box.node);
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

  const modeSelect = selectElement('Grouped by', [['layer', 'by layer'], ['source', 'by source line']], state.values.layerMode, (layerMode) => state.update({ layerMode, part: '' }));
  controls.append(modeSelect, ...chartButtons(chart, 'layers'));

  function renderControls() {
    const { layerMode, at, window } = state.values;
    modeSelect.value = layerMode;
    unit.textContent = unbroken(`Requested bytes ${window ? 'of the window' : `at ${describeInstant(recording, at)}`}${layerMode === 'layer' ? ', layers in the order of the model' : ''}.`);
  }

  return {
    chart,
    mark() { chart.redraw(); table.mark(); },
    update(keys) {
      if (keys.has('shown') || keys.has('at') || keys.has('window') || keys.has('isSmallShown') || keys.has('layerMode')) {
        root = buildTree(recording, state.values, order, paths);
        renderControls();
        show();
      } else if (keys.has('part')) show();
      else { chart.redraw(); if (keys.has('buffer')) table.repaint(); }
    },
    table,
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
    const next = node.children.find(({ key, isLeaf }) => !isLeaf && (rest === key || rest.startsWith(key + PART_SEPARATOR)));
    if (!next) break;
    node = next;
    rest = rest.slice(next.key.length + PART_SEPARATOR.length);
  }
  return node;
}

// A part finds its children when they are asked for: most parts are too small to draw.
class IciclePart {
  members = []; // buffers
  bytes = 0;
  order = Infinity;
  isLeaf = true;
  buffer = null; // the first one that ends here
  found = null; // children
  top = null; // category

  constructor(tree, key, isLayer, parent, depth) {
    this.tree = tree;
    this.key = key;
    this.label = key;
    this.isLayer = isLayer;
    this.parent = parent;
    this.depth = depth;
  }

  add(b) {
    const { sizes, order, layer, pathOf } = this.tree;
    this.members.push(b);
    this.bytes += sizes[b];
    this.order = Math.min(this.order, order[layer[b]]);
    if (pathOf(b).keys.length > this.depth) this.isLeaf = false; else this.buffer ??= b;
  }

  // Blocks of layers in the order of the model, then everything else, largest first.
  get children() {
    if (this.found) return this.found;
    const parts = new Map();
    for (const b of this.members) {
      const { keys, layers } = this.tree.pathOf(b);
      const key = keys[this.depth];
      if (key === undefined) continue;
      if (!parts.has(key)) parts.set(key, new IciclePart(this.tree, key, this.depth < layers, this, this.depth + 1));
      parts.get(key).add(b);
    }
    const inLayers = [...parts.values()].filter(({ isLayer }) => isLayer).sort((a, b) => a.order - b.order);
    const others = [...parts.values()].filter(({ isLayer }) => !isLayer).sort((a, b) => b.bytes - a.bytes);
    this.found = [...gatherBlocks(inLayers), ...others];
    return this.found;
  }

  get topCategory() {
    if (this.top !== null) return this.top;
    const { sizes, codeOf } = this.tree;
    const bytes = [];
    for (const b of this.members) bytes[codeOf(b)] = (bytes[codeOf(b)] || 0) + sizes[b];
    this.top = bytes.indexOf(bytes.reduce((most, size) => Math.max(most, size), 0));
    return this.top;
  }
}

function buildTree(recording, values, order, paths) {
  const { requested, layer } = recording.columns;
  const codeOf = (b) => recording.categoryAt(b, values.at);
  const tree = { sizes: requested, order, codeOf, pathOf: paths[values.layerMode], layer };
  const root = new IciclePart(tree, 'all', false, null, 0);
  for (const b of listedBuffers(recording, values)) root.add(b);
  return root;
}

// A block of layers, in place of them.
function blockOf(children, key, label) {
  const { tree, parent, depth, order } = children.reduce((most, child) => (child.bytes > most.bytes ? child : most));
  const block = new IciclePart(tree, key, true, parent, depth);
  const members = children.flatMap((child) => child.members);
  for (const child of children) child.parent = block;
  const bytes = children.reduce((sum, child) => sum + child.bytes, 0);
  return Object.assign(block, { label, order, members, bytes, isLeaf: false, found: children });
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
    return [blockOf(gatherBlocks(members), members[0].key.slice(0, members[0].key.length - rests[0].length - 1), block)];
  });
}

// The place of each layer in the model, by the number of its name: the birth of its largest activation; a layer without activations
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
  const order = new Uint32Array(recording.strings.length);
  places.forEach(({ code }, place) => { order[code] = place; });
  return order;
}

// A function from a buffer to its path. Buffers of many steps share paths.
function createPaths({ columns, strings }, mode) {
  const [byBuffer, byText] = [[], new Map()];
  return (b) => {
    if (byBuffer[b]) return byBuffer[b];
    const leaf = columns.variable[b] || columns.op[b] || columns.name[b];
    const key = columns[mode][b] * strings.length + leaf;
    if (!byText.has(key)) byText.set(key, findPath(strings[columns[mode][b]], strings[leaf], mode));
    byBuffer[b] = byText.get(key);
    return byBuffer[b];
  };
}

// The path through the tree: source file, line and op, or layer by layer and op. The first `layers` keys are layers.
function findPath(place, leaf, mode) {
  if (mode === 'source') {
    const [, file, line] = /^(.+):(\d+)$/.exec(place) || [];
    return { keys: [...(file ? [file, `line ${line}`] : [place || '(no source line)']), leaf], layers: 0 };
  }
  if (!place) return { keys: ['(no layer)', ...leaf.split('/', 12)], layers: 0 };
  const keys = place.split('/', 12);
  return { keys: [...keys, leaf], layers: keys.length };
}
