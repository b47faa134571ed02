// The tables of the report: tensors at the instant, and ops.

function createTensorTable(recording, state) {
  const { columns, textOf, nameOf } = recording;
  const categoryOf = (b) => recording.categories[recording.categoryAt(b, state.values.at)];
  return stateTable(state, {
    name: 'Tensors alive at the instant',
    rows: () => listedBuffers(recording, state.values),
    isSmall: (b) => columns.requested[b] < LEAST_SHARE * recording.total[state.values.at],
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
      { key: 'allocated', label: 'Allocated', csv: 'allocated_bytes', kind: 'size', value: (b) => columns.allocated[b] },
      { key: 'category', label: 'Category', kind: 'category', value: categoryOf, format: (name) => CATEGORY_LABELS[name], swatch: categoryOf },
      { key: 'layer', label: 'Layer', kind: 'text', value: (b) => textOf('layer', b) },
      { key: 'op', label: 'Op', kind: 'text', value: (b) => textOf('op', b), hidden: true },
      { key: 'born', label: 'Born', kind: 'count', value: (b) => columns.born[b] - 1, format: (i) => (i < 0 ? 'before' : formatCount(i)), title: 'Instant of birth' },
      { key: 'dies', label: 'Freed', kind: 'count', value: (b) => columns.dies[b] - 1, format: (i) => (i + 1 >= recording.states ? 'after' : formatCount(i)), title: 'Instant of death' },
      { key: 'dtype', label: 'Dtype', kind: 'short', value: (b) => textOf('dtype', b) },
      { key: 'shape', label: 'Shape', kind: 'short', value: (b) => textOf('shape', b) },
      { key: 'why', label: 'Why it is alive', kind: 'text', value: (b) => textOf('why', b), title: 'Why it is alive at the peak' },
    ],
  });
}

function createOpTable(recording, state) {
  let aliveByOp = new Map();
  let buffersByOp = new Map();
  const bytesOf = (op) => Math.max(aliveByOp.get(op.name) || 0, op.alive_at_peak_bytes || 0, op.requested_bytes || 0);
  const listed = new Set(recording.document.ops.map((op) => op.name));
  return stateTable(state, {
    name: 'Ops',
    rows: () => {
      aliveByOp = new Map();
      buffersByOp = new Map();
      for (const b of listedBuffers(recording, state.values)) {
        const op = recording.textOf('op', b);
        if (!buffersByOp.has(op)) buffersByOp.set(op, []);
        buffersByOp.get(op).push(b);
        aliveByOp.set(op, (aliveByOp.get(op) || 0) + recording.columns.requested[b]);
      }
      // What lives from before the step belongs to ops that the document may not list.
      const others = [...aliveByOp.keys()].filter((name) => !listed.has(name)).map((name) => ({ name }));
      return [...recording.document.ops, ...others];
    },
    buffersOf: (op) => buffersByOp.get(op.name) || [],
    isSmall: (op) => bytesOf(op) < LEAST_SHARE * recording.total[recording.peakState],
    initialSort: { key: 'alive_now', descending: true },
    filters: [
      { label: 'category', value: (op) => op.category || '', text: (name) => CATEGORY_LABELS[name] || name },
      { label: 'type', value: (op) => op.type || '' },
      { label: 'layer', value: (op) => op.layer || '' },
    ],
    columns: [
      { key: 'name', label: 'Op', kind: 'text', grow: true, value: (op) => op.name },
      { key: 'type', label: 'Type', kind: 'short', value: (op) => op.type },
      { key: 'layer', label: 'Layer', kind: 'text', value: (op) => op.layer },
      { key: 'source', label: 'Source', kind: 'text', value: (op) => op.source },
      { key: 'alive_now', label: 'Alive now', csv: 'alive_at_instant_bytes', kind: 'size', title: 'All requested bytes alive at the chosen instant', value: (op) => aliveByOp.get(op.name) || 0 },
      { key: 'alive_at_peak_bytes', label: 'At the peak', csv: 'alive_at_peak_bytes', kind: 'size', title: 'Requested bytes alive at the peak', value: (op) => op.alive_at_peak_bytes },
      { key: 'requested_bytes', label: 'Asked for', csv: 'requested_bytes', kind: 'size', title: 'All requested bytes, dead or alive', value: (op) => op.requested_bytes },
      { key: 'temporary_bytes', label: 'Temporary', csv: 'temporary_bytes', kind: 'size', value: (op) => op.temporary_bytes },
    ],
  });
}
