// The allocator's addresses over time. A chunk is a rectangle: requested bytes have the colour of the
// category, the unused rest of the chunk is grey. Everything else is free.

const MAP_HEIGHT = 380;
const REGION_GAP_BYTES = 1 << 20;
const MOST_REGIONS = 12; // more would not be legible
const REGION_SPACE = 8;
const MOST_MARKED = 1000; // chunks with an outline

function createMap(container, recording, axis, state) {
  const { columns } = recording;
  if (!columns.address.some((address) => address > 0)) {
    container.append(element('p', { class: 'empty', text: 'This recording has no addresses. A trace of a real run has them.' }));
    return { update() {} };
  }
  const regions = findRegions(columns);
  const note = element('p', { class: 'note' });
  let chunks = []; // of the instant, and the gaps between them
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
    context.drawImage(drawChunks(width, canvasHeight), 0, 0, width, canvasHeight);
    drawAxisLabels(context, axis, recording, width, canvasHeight - 8);
  }

  // The chunks as an image. They do not overlap, so the work is that of the pixels, however many they are.
  function drawChunks(width, canvasHeight) {
    const ratio = devicePixelRatio || 1;
    const image = /** @type {HTMLCanvasElement} */ (element('canvas', { width: Math.round(width * ratio), height: Math.round(canvasHeight * ratio) }));
    const context = image.getContext('2d');
    const pixels = context.createImageData(image.width, image.height);
    const across = pixels.width;
    const points = new Uint32Array(pixels.data.buffer);
    const [faint, ...inks] = [colours.faint, ...colours.category].map(pixelOf);
    const [first, last] = axis.visibleStates();
    const pixelX = (s) => Math.floor(ratio * clampX(axis.xOfState(s, width), width));

    function fill(left, top, right, bottom, ink) {
      for (let y = top; y < bottom; y += 1) {
        points.fill(ink, y * across + left, y * across + right);
      }
    }

    for (let b = 0; b < recording.buffers && columns.born[b] <= last; b += 1) {
      if (columns.dies[b] < first || columns.address[b] === 0) continue;
      const region = regions[regionOf[b]];
      const left = pixelX(columns.born[b]);
      const right = Math.max(left + 1, pixelX(columns.dies[b]));
      const top = Math.floor(ratio * toY(region, columns.address[b] + columns.allocated[b]));
      const bottom = Math.max(top + 1, Math.floor(ratio * toY(region, columns.address[b])));
      const used = bottom - Math.ceil((bottom - top) * columns.requested[b] / (columns.allocated[b] || 1));
      const gap = bottom - top > 3 * ratio ? 1 : 0; // between neighbours
      fill(left, top + gap, right, used, faint);
      fill(left, used + gap, right, bottom, inks[columns.category[b]]);
    }
    context.putImageData(pixels, 0, 0);
    return image;
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
    const { marked, buffer } = state.values;
    for (const b of (marked || []).slice(0, MOST_MARKED)) drawOutline(context, width, b, colours.ink);
    if (buffer !== null) drawOutline(context, width, buffer, colours.accent);
  }

  function drawOutline(context, width, b, colour) {
    if (columns.address[b] === 0) return;
    const region = regions[regionOf[b]];
    const [left, right] = [columns.born[b], columns.dies[b]].map((s) => clampX(axis.xOfState(s, width), width));
    const y = toY(region, columns.address[b] + columns.allocated[b]);
    context.strokeStyle = colour;
    context.lineWidth = 2;
    if (right > left) context.strokeRect(left, y, right - left, Math.max(1, toY(region, columns.address[b]) - y));
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
    rows: () => (chunks = chunkRows(recording, regions, regionOf, state.values.at)),
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
        const free = chunks.filter((row) => row.free);
        const largest = free.reduce((most, row) => Math.max(most, row.free), 0);
        note.textContent = unbroken(`${formatCount(regions.length)} ${regions.length === 1 ? 'range' : 'ranges'} of addresses with chunks. ${free.length ? `Free gaps at the instant: ${formatCount(free.length)}, the largest has ${formatBytes(largest)}. ` : ''}Grey: allocated but not requested.`);
      }
      if (keys.has('buffer')) table.repaint();
      if (keys.has('viewKey') || keys.has('shown')) chart.redraw(); else chart.redrawOverlay();
    },
  };
}

const addressText = (recording, address) => `0x${(recording.header.address_base + address - 1).toString(16)}`;

// Ranges of addresses with chunks; the largest gaps of more than 1 MiB separate them. All chunks that
// start before a gap also end before it, so starts and ends can be sorted apart.
function findRegions({ address, allocated }) {
  const starts = Float64Array.from(address).filter((at) => at > 0).sort();
  const ends = Float64Array.from(address, (at, b) => (at > 0 ? at + allocated[b] : 0)).filter((end) => end > 0).sort();
  const gaps = ends.subarray(0, -1).map((end, i) => starts[i + 1] - end);
  const shortest = Math.max(REGION_GAP_BYTES, gaps.slice().sort().at(-MOST_REGIONS) ?? 0);
  /** @type {{ start: number, end: number, size: number, top?: number, height?: number }[]} */
  const regions = [];
  let from = 0;
  for (let i = 0; i < starts.length; i += 1) {
    if (i < gaps.length && gaps[i] <= shortest) continue;
    regions.push({ start: starts[from], end: ends[i], size: Math.max(1, ends[i] - starts[from]) });
    from = i + 1;
  }
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
