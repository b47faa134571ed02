// One tensor with its producer and its readers, and their other tensors. Each name is a button.

function createGraph(container, recording, state) {
  const graph = readGraph(recording);
  if (graph.size === 0) {
    container.append(element('p', { class: 'empty', text: 'This recording has no graph, so the readers of a tensor are unknown.' }));
    return { update() {}, reset() {}, focusSearch() {} };
  }
  const note = element('p', { class: 'note', text: `The ${formatCount(graph.size)} tensors with the largest product of bytes and lifetime, with producer and readers. Choose one in any table or chart.` });
  const picture = element('div', { class: 'graph' });
  container.append(note, picture);
  let tensor = null;

  function show(name) {
    tensor = name;
    const node = graph.tensors.get(name);
    const chosen = state.values.buffer;
    const buffer = chosen !== null && recording.textOf('tensor', chosen) === name ? chosen : bufferOf(recording, name, state.values.at);
    const readers = node.consumers.map((op) => ({ op, ran: lastRun(graph.ops[op][0], buffer), ...reasonOf(op, buffer) }))
      .sort((a, b) => b.holds - a.holds || (b.ran ?? -1) - (a.ran ?? -1));
    if (buffer !== null && readers.length && !readers[0].holds && recording.columns.dies[buffer] - (readers[0].ran ?? -Infinity) <= 2) {
      readers[0].holdsText = 'the last known reader, just before the tensor is freed';
    }
    picture.replaceChildren(
      column('Made by', node.producer === null ? [note_('no op: it is an input or a variable')] : [opCard({ op: node.producer, ran: lastRun(graph.ops[node.producer][0], buffer) }, graph.readsOf(node.producer), 'reads')]),
      column('Tensor', [tensorCard(name, buffer)]),
      column(readers.length ? `Read by ${readers.length}` : 'Read by', readers.length ? readers.map((reader) => opCard(reader, graph.makesOf(reader.op), 'makes')) : [note_('no op in the graph')]));
  }

  const note_ = (text) => element('p', { class: 'empty', text });
  const column = (title, cards) => element('section', { class: 'graph-column' }, element('h3', { text: title }), ...cards);

  // The last request of an op during the buffer's lifetime; null if it made none.
  function lastRun(name, b) {
    const ran = (graph.births.get(name) || []).filter((s) => b === null || (recording.columns.born[b] <= s && s <= recording.columns.dies[b]));
    return ran.length ? ran[ran.length - 1] : null;
  }

  function reasonOf(op, b) {
    const holds = b !== null && ` ${recording.textOf('why', b)} `.includes(` ${graph.ops[op][0]} `);
    return { holds, holdsText: holds ? 'keeps the tensor alive' : '' };
  }

  function tensorButton(name) {
    const known = graph.tensors.has(name);
    return element('button', { type: 'button', class: 'link', text: shortName(name, 120), title: name.slice(0, 2000), disabled: !known, onclick: () => {
      const buffer = bufferOf(recording, name, state.values.at);
      if (buffer !== null) state.update({ buffer });
      show(name);
    } });
  }

  function opCard({ op, ran, holdsText = '' }, tensors, verb) {
    const [name, type, layer, source] = graph.ops[op];
    return element('article', { class: 'card' },
      element('strong', { class: 'name', text: shortName(name, 160), title: name.slice(0, 2000) }),
      element('span', { class: 'facts', text: [type, layer && shortName(layer, 80), source && shortName(source, 80)].filter(Boolean).join(' · ') }),
      element('span', { class: 'facts', text: ran === null ? 'requests no memory, so its time is unknown' : `last request at instant ${formatCount(ran - 1)}` }),
      holdsText ? element('span', { class: 'holds', text: holdsText }) : null,
      tensors.length ? element('details', { open: tensors.length <= 6 }, element('summary', { text: `${verb} ${tensors.length} known ${tensors.length === 1 ? 'tensor' : 'tensors'}` }), element('ul', {}, tensors.map((name_) => element('li', {}, tensorButton(name_))))) : null);
  }

  function tensorCard(name, b) {
    const card = element('article', { class: 'card chosen' }, element('strong', { class: 'name', text: shortName(name, 300) }));
    if (b === null) { card.append(element('span', { class: 'facts', text: 'no buffer of its own in this recording' })); return card; }
    const { columns, textOf } = recording;
    card.append(
      element('span', { class: 'facts' }, swatchElement(recording.categories[columns.category[b]]), ` ${CATEGORY_LABELS[recording.categories[columns.category[b]]]}`),
      element('span', { class: 'facts', text: [textOf('dtype', b), textOf('shape', b)].filter(Boolean).join(' ') }),
      element('span', { class: 'facts' }, 'requested ', sizeElement(columns.requested[b])),
      element('span', { class: 'facts', text: lifetimeLines(recording, b).find((line) => typeof line === 'string') }));
    if (textOf('why', b)) card.append(element('span', { class: 'holds', text: shortName(textOf('why', b), 400) }));
    return card;
  }

  return {
    update(keys) {
      if (!keys.has('buffer') && !keys.has('shown')) return;
      const { buffer } = state.values;
      const name = buffer === null ? '' : recording.textOf('tensor', buffer);
      if (graph.tensors.has(name)) show(name);
      else if (buffer !== null) {
        tensor = null;
        picture.replaceChildren(note_(`${shortName(recording.nameOf(buffer), 120)} is not in this page's part of the graph${recording.textOf('tensor', buffer) ? '' : recording.textOf('variable', buffer) ? ': variables are outside the graph' : ': its tensor is unknown'}.`));
      } else if (tensor === null) show(graph.first);
    },
    reset() {}, focusSearch() {}, shownTensor: () => tensor,
  };
}

function readGraph(recording) {
  const { columns, strings, header } = recording;
  const tensors = new Map();
  const made = new Map();
  const read = new Map();
  const add = (map, key, value) => { if (map.has(key)) map.get(key).push(value); else map.set(key, [value]); };
  for (let t = 0; t < (columns.graph_tensor || []).length; t += 1) {
    const name = strings[columns.graph_tensor[t]];
    const producer = columns.graph_producer[t] ? columns.graph_producer[t] - 1 : null;
    const consumers = [...columns.graph_consumer.slice(columns.graph_offset[t], columns.graph_offset[t + 1])];
    tensors.set(name, { producer, consumers });
    if (producer !== null) add(made, producer, name);
    for (const op of consumers) add(read, op, name);
  }
  const births = new Map();
  for (let b = 0; b < recording.buffers; b += 1) add(births, recording.textOf('op', b), columns.born[b]);
  return {
    size: tensors.size, tensors, ops: header.ops, births,
    first: tensors.keys().next().value,
    readsOf: (op) => read.get(op) || [],
    makesOf: (op) => made.get(op) || [],
  };
}

// The buffer of a tensor that is alive at the instant, else its last buffer.
function bufferOf(recording, tensor, at) {
  let found = null;
  const place = recording.strings.indexOf(tensor);
  for (let b = 0; b < recording.buffers; b += 1) {
    if (recording.columns.tensor[b] !== place) continue;
    if (recording.isAlive(b, at)) return b;
    found = b;
  }
  return found;
}
