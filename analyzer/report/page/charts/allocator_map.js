// The allocator's addresses over time. A chunk is a rectangle: requested bytes have the colour of the
// category, the unused rest of the chunk is grey. Everything else is free.

const MAP_HEIGHT = 380;
const REGION_GAP_BYTES = 1 << 20;
const REGION_SPACE = 8;
const MOST_MARKED = 1000; // chunks with an outline

function createMap(container, recording, axis, state) {
  const { columns } = recording;
  if (!columns.address.some((address) => address > 0)) {
    container.append(element('p', { class: 'empty', text: 'This recording has no addresses. A trace of a real run has them.' }));
    return { update() {}, mark() {}, reset() {}, focusSearch() {} };
  }
  /** @type {{ start: number, end: number, size?: number, top?: number, height?: number }[]} */
  const regions = findRegions(columns);
  const note = element('p', { class: 'note' });
  const chartBox = element('div', { class: 'chart' });

  const regionOf = assignRegions(columns, regions);
  const height = placeRegions(regions);
  const toY = (region, address) => region.top + (1 - (address - region.start) / region.size) * region.height;

  function draw(context, width, canvasHeight) {
    const left = AXIS_PADDING.left;
    const right = width - AXIS_PADDING.right;
    context.textAlign = 'right';
    for (const [place, region] of regions.entries()) {
      context.fillStyle = colours.band;
      context.fillRect(left, region.top, right - left, region.height);
      context.fillStyle = colours.muted;
      const middle = region.top + region.height / 2;
      const isNamed = regions.length > 1 && region.height >= 30;
      if (isNamed) context.fillText(`range ${place}`, left - 6, middle - 7);
      if (region.height >= 10) context.fillText(formatTick(region.size), left - 6, isNamed ? middle + 7 : middle);
    }
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, canvasHeight - 18);
    context.clip();
    drawChunks(context, width);
    context.restore();
    drawAxisLabels(context, axis, recording, width, canvasHeight - 8);
  }

  function drawChunks(context, width) {
    const [first, last] = axis.visibleStates();
    const boxes = recording.categories.map(() => []); // x, y, width, height of each, one after the other
    const waste = [];
    let chosen = null;
    for (let b = 0; b < recording.buffers && columns.born[b] <= last; b += 1) {
      if (columns.dies[b] < first || columns.address[b] === 0) continue;
      const region = regions[regionOf[b]];
      const x = axis.xOfState(columns.born[b], width);
      const w = Math.max(0.6, axis.xOfState(columns.dies[b], width) - x);
      const start = columns.address[b];
      const y = toY(region, start + columns.allocated[b]);
      const h = toY(region, start) - y;
      const requestedHeight = h * columns.requested[b] / (columns.allocated[b] || 1);
      const gap = h > 3 ? 0.5 : 0;
      boxes[columns.category[b]].push(x, y + h - requestedHeight + gap, w, Math.max(0.6, requestedHeight - gap));
      if (h - requestedHeight > 0.7) waste.push([x, y + gap, w, h - requestedHeight]);
      if (b === state.values.buffer) chosen = [x, y, w, h];
    }
    for (const [code, flat] of boxes.entries()) {
      context.fillStyle = colours.category[code];
      for (let i = 0; i < flat.length; i += 4) context.fillRect(flat[i], flat[i + 1], flat[i + 2], flat[i + 3]);
    }
    context.fillStyle = colours.faint;
    for (const box of waste) context.fillRect(...box);
    if (chosen) { context.strokeStyle = colours.accent; context.lineWidth = 2; context.strokeRect(...chosen); context.lineWidth = 1; }
  }

  container.append(note, chartBox);
  const chart = createCanvas(chartBox, {
    height, label: 'Addresses of the allocator over time. The list below has the chunks of the chosen instant.', draw,
    overlay: (context, width, canvasHeight) => {
      drawMarked(context, width);
      drawAxisCursor(context, chart, axis, state, width, canvasHeight);
    },
  });
  container.prepend(element('div', { class: 'controls chart-files' }, chartButtons(chart, 'allocator-map')));

  function drawMarked(context, width) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    for (const b of (state.values.marked || []).slice(0, MOST_MARKED)) {
      if (columns.address[b] === 0) continue;
      const region = regions[regionOf[b]];
      const ends = [columns.born[b], columns.dies[b]].map((s) => Math.max(AXIS_PADDING.left, Math.min(width - AXIS_PADDING.right, axis.xOfState(s, width))));
      const y = toY(region, columns.address[b] + columns.allocated[b]);
      if (ends[1] > ends[0]) context.strokeRect(ends[0], y, ends[1] - ends[0], Math.max(1, toY(region, columns.address[b]) - y));
    }
    context.lineWidth = 1;
  }

  function bufferAt(x, y) {
    const s = axis.stateAtPosition(axis.fromX(x, chart.width));
    const region = regions.find((candidate) => y >= candidate.top && y <= candidate.top + candidate.height);
    if (!region) return null;
    const address = region.start + (1 - (y - region.top) / region.height) * region.size;
    for (const b of recording.aliveAt(s)) {
      if (columns.address[b] > 0 && columns.address[b] <= address && address < columns.address[b] + columns.allocated[b]) return b;
    }
    return null;
  }
  attachAxisGestures(chart, axis, recording, state, {
    pick: (x, y) => {
      const b = bufferAt(x, y);
      state.update({ at: axis.stateAtPosition(axis.fromX(x, chart.width)), ...(b === null ? {} : { buffer: b }) });
    },
    hover: (x, y, event) => {
      const b = bufferAt(x, y);
      markBuffers(state, b === null ? [] : [b]);
      if (b === null) showTooltip(event, 'free', [describeInstant(recording, axis.stateAtPosition(axis.fromX(x, chart.width)))]);
      else showTooltip(event, recording.nameOf(b), [...lifetimeLines(recording, b), [null, 'unused in the chunk', columns.allocated[b] - columns.requested[b]], `address ${addressText(recording, columns.address[b])}`]);
    },
  });

  const table = stateTable(state, {
    name: 'Chunks and gaps in order of address', initialSort: { key: 'address', descending: false },
    rows: () => chunkRows(recording, regions, regionOf, state.values.at),
    onPick: (row) => { if (row.buffer !== null) state.update({ buffer: row.buffer }); },
    isPicked: (row) => row.buffer !== null && row.buffer === state.values.buffer,
    buffersOf: (row) => (row.buffer === null ? [] : [row.buffer]),
    filters: [{ label: 'kind', value: (row) => row.kind, text: (kind) => CATEGORY_LABELS[kind] || kind }],
    columns: [
      { key: 'name', label: 'Chunk', kind: 'text', grow: true, value: (row) => row.name },
      { key: 'address', label: 'Address', kind: 'address', value: (row) => row.address, format: (address) => addressText(recording, address) },
      { key: 'allocated', label: 'Allocated', csv: 'allocated_bytes', kind: 'size', value: (row) => row.allocated },
      { key: 'waste', label: 'Waste', csv: 'waste_bytes', kind: 'size', value: (row) => row.waste },
      { key: 'free', label: 'Free', csv: 'free_bytes', kind: 'size', value: (row) => row.free },
    ],
  });
  container.append(table.root);

  return {
    chart, table,
    mark() { chart.redrawOverlay(); table.mark(); },
    update(keys) {
      if (keys.has('at') || keys.has('shown')) {
        table.update();
        const free = table.rows().filter((row) => row.free);
        const largest = free.reduce((most, row) => Math.max(most, row.free), 0);
        note.textContent = unbroken(`${formatCount(regions.length)} ${regions.length === 1 ? 'range' : 'ranges'} of addresses with chunks. At the instant ${free.length === 1 ? "there is" : "there are"} ${formatCount(free.length)} free ${free.length === 1 ? "gap" : "gaps"}, the largest has ${formatBytes(largest)}. Grey: allocated but not requested.`);
      }
      if (keys.has('buffer')) table.repaint();
      if (keys.has('at') && keys.size === 1) chart.redrawOverlay(); else chart.redraw();
    },
    focusSearch: () => table.focusSearch(),
    reset: () => table.reset(),
  };
}

const addressText = (recording, address) => `0x${(recording.header.address_base + address - 1).toString(16)}`;

// Ranges of addresses with chunks; a gap of more than 1 MiB separates two ranges.
function findRegions({ address, allocated }) {
  const order = Array.from(address.keys()).filter((b) => address[b] > 0).sort((a, b) => address[a] - address[b]);
  /** @type {{ start: number, end: number, size?: number }[]} */
  const regions = [];
  let current = null;
  for (const b of order) {
    const end = address[b] + allocated[b];
    if (!current || address[b] > current.end + REGION_GAP_BYTES) regions.push(current = { start: address[b], end });
    else current.end = Math.max(current.end, end);
  }
  for (const region of regions) region.size = Math.max(1, region.end - region.start);
  return regions;
}

// Place the ranges below each other, with heights by their bytes; return the total height.
function placeRegions(regions) {
  const usable = MAP_HEIGHT - 20 - REGION_SPACE * regions.length;
  const regionBytes = regions.reduce((sum, region) => sum + region.size, 0);
  let top = 4;
  for (const region of regions) {
    region.top = top;
    region.height = Math.max(3, usable * region.size / regionBytes);
    top += region.height + REGION_SPACE;
  }
  return top + 20;
}

function assignRegions({ address }, regions) {
  return Uint32Array.from(address, (at) => Math.max(0, lowestThat((place) => regions[place].start > at, 0, regions.length) - 1));
}

function chunkRows(recording, regions, regionOf, at) {
  const { columns } = recording;
  const alive = recording.aliveAt(at).filter((b) => columns.address[b] > 0).sort((a, b) => columns.address[a] - columns.address[b]);
  const rows = [];
  let place = 0;
  const gap = (from, to) => { if (to > from) rows.push({ name: '(free)', kind: 'free', address: from, allocated: null, waste: null, free: to - from, buffer: null }); };
  for (const [r, region] of regions.entries()) {
    let end = region.start;
    for (; place < alive.length && regionOf[alive[place]] === r; place += 1) {
      const b = alive[place];
      gap(end, columns.address[b]);
      rows.push({ name: recording.nameOf(b), kind: recording.categories[recording.categoryAt(b, at)], address: columns.address[b], allocated: columns.allocated[b], waste: columns.allocated[b] - columns.requested[b], free: null, buffer: b });
      end = Math.max(end, columns.address[b] + columns.allocated[b]);
    }
    gap(end, region.end);
  }
  return rows;
}
