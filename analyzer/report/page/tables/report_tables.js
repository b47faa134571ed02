// The tables of the report: tensors at the instant, ops, retained tensors.

function createTensorTable(recording, state) {
  const { columns, textOf, nameOf } = recording;
  const categoryOf = (b) => recording.categories[recording.categoryAt(b, state.values.at)];
  return stateTable(state, {
    name: 'Tensors alive at the instant',
    rows: () => recording.aliveAt(state.values.at),
    initialSort: { key: 'requested', descending: true },
    bufferOf: (b) => b,
    note: recording.header.folded_buffers
      ? `${formatCount(recording.header.folded_buffers)} small or short-lived buffers are in the sums of the timeline but not in this list.${recording.header.all_states > recording.states ? ` The timeline has ${formatCount(recording.states)} of ${formatCount(recording.header.all_states)} instants: all of the steady step, and local peaks of the others.` : ''}` : '',
    filters: [
      { label: 'category', value: categoryOf, text: (name) => CATEGORY_LABELS[name] },
      { label: 'layer', value: (b) => textOf('layer', b) },
      { label: 'dtype', value: (b) => textOf('dtype', b) },
    ],
    columns: [
      { key: 'name', label: 'Tensor', kind: 'text', grow: true, value: nameOf },
      { key: 'requested', label: 'Requested', csv: 'requested_bytes', kind: 'size', value: (b) => columns.requested[b] },
      { key: 'allocated', label: 'Allocated', csv: 'allocated_bytes', kind: 'size', value: (b) => columns.allocated[b], rank: 2 },
      { key: 'category', label: 'Category', kind: 'category', value: categoryOf, format: (name) => CATEGORY_LABELS[name], swatch: categoryOf, rank: 3 },
      { key: 'layer', label: 'Layer', kind: 'text', value: (b) => textOf('layer', b), rank: 1 },
      { key: 'op', label: 'Op', kind: 'text', value: (b) => textOf('op', b), hidden: true },
      { key: 'dtype', label: 'Dtype', kind: 'dtype', value: (b) => textOf('dtype', b), rank: 6 },
      { key: 'shape', label: 'Shape', kind: 'short', value: (b) => textOf('shape', b), rank: 4 },
      { key: 'born', label: 'Born', kind: 'instant', value: (b) => columns.born[b] - 1, format: (i) => (i < 0 ? 'before' : formatCount(i)), rank: 7, title: 'Instant of birth' },
      { key: 'dies', label: 'Freed', kind: 'instant', value: (b) => columns.dies[b] - 1, format: (i) => (i + 1 >= recording.states ? 'after' : formatCount(i)), rank: 8, title: 'Instant of death' },
    ],
  });
}

function createOpTable(recording, state) {
  let aliveByOp = new Map();
  const listed = new Set(recording.document.ops.map((op) => op.name));
  return stateTable(state, {
    name: 'Ops',
    rows: () => {
      aliveByOp = new Map();
      for (const b of recording.aliveAt(state.values.at)) {
        const op = recording.textOf('op', b);
        aliveByOp.set(op, (aliveByOp.get(op) || 0) + recording.columns.requested[b]);
      }
      // What lives from before the step belongs to ops that the document may not list.
      const others = [...aliveByOp.keys()].filter((name) => !listed.has(name)).map((name) => ({ name }));
      return [...recording.document.ops, ...others];
    },
    onChoice: () => state.touch('choices'),
    initialSort: { key: 'alive_now', descending: true },
    filters: [
      { label: 'category', value: (op) => op.category || '', text: (name) => CATEGORY_LABELS[name] || name },
      { label: 'type', value: (op) => op.type || '' },
      { label: 'layer', value: (op) => op.layer || '' },
    ],
    columns: [
      { key: 'name', label: 'Op', kind: 'text', grow: true, value: (op) => op.name },
      { key: 'type', label: 'Type', kind: 'short', value: (op) => op.type, rank: 2 },
      { key: 'layer', label: 'Layer', kind: 'text', value: (op) => op.layer, rank: 1 },
      { key: 'source', label: 'Source', kind: 'text', value: (op) => op.source, rank: 6 },
      { key: 'alive_now', label: 'Alive now', csv: 'alive_at_instant_bytes', kind: 'size', title: 'All requested bytes alive at the chosen instant', value: (op) => aliveByOp.get(op.name) || 0 },
      { key: 'alive_at_peak_bytes', label: 'At the peak', csv: 'alive_at_peak_bytes', kind: 'size', title: 'Requested in the step of the peak and alive at it', value: (op) => op.alive_at_peak_bytes, rank: 3 },
      { key: 'requested_bytes', label: 'Asked for', csv: 'requested_bytes', kind: 'size', title: 'All requested bytes, dead or alive', value: (op) => op.requested_bytes, rank: 4 },
      { key: 'temporary_bytes', label: 'Temporary', csv: 'temporary_bytes', kind: 'size', value: (op) => op.temporary_bytes, rank: 5 },
    ],
  });
}

function createRetainedTable(recording, state) {
  const find = retainedFinder(recording);
  return stateTable(state, {
    name: 'Retained tensors',
    rows: () => recording.document.retained || [],
    initialSort: { key: 'requested_bytes', descending: true },
    note: 'Activations of the forward pass that are alive at the peak because a later op needs them.',
    bufferOf: find,
    filters: [
      { label: 'category', value: (row) => row.category || '', text: (name) => CATEGORY_LABELS[name] || name },
      { label: 'layer', value: (row) => row.layer || '' },
      { label: 'dtype', value: (row) => row.dtype || '' },
    ],
    columns: [
      { key: 'name', label: 'Tensor', kind: 'text', grow: true, value: (row) => row.name },
      { key: 'requested_bytes', label: 'Requested', csv: 'requested_bytes', kind: 'size', value: (row) => row.requested_bytes },
      { key: 'byte_seconds', label: 'Bytes × time', csv: 'byte_seconds', kind: 'count', value: (row) => row.byte_seconds, format: (value) => `${formatBytes(value)}·s`, rank: 3 },
      { key: 'layer', label: 'Layer', kind: 'text', value: (row) => row.layer, rank: 2 },
      { key: 'waits_for', label: 'Waits for', kind: 'text', value: (row) => row.waits_for, rank: 1 },
      { key: 'why_alive', label: 'Why it is alive', kind: 'text', value: (row) => row.why_alive, rank: 6 },
      { key: 'allocated_bytes', label: 'Allocated', csv: 'allocated_bytes', kind: 'size', value: (row) => row.allocated_bytes, rank: 5 },
      { key: 'shape', label: 'Shape', kind: 'short', value: (row) => `${row.dtype || ''} ${shapeText(row.shape)}`.trim(), rank: 4 },
    ],
  });
}

const shapeText = (shape) => (Array.isArray(shape) ? `[${shape.join(', ')}]` : shape || '');

// The buffer of a row of the report: same op, same size, alive at the peak.
function retainedFinder(recording) {
  const { columns, textOf, peakState } = recording;
  const alive = recording.aliveAt(peakState);
  const found = new Map();
  return (row) => {
    if (found.has(row)) return found.get(row);
    const same = alive.find((b) => columns.requested[b] === row.requested_bytes
      && (textOf('op', b) === row.op || textOf('tensor', b) === row.name || recording.nameOf(b) === row.name));
    found.set(row, same === undefined ? null : same);
    return found.get(row);
  };
}
