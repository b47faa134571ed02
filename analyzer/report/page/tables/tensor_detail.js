// The chosen tensor with its producer and readers, in a pane next to the view, or in a sheet on narrow screens.

const MOST_READERS = 12; // ops listed with the tensors that they make

function createDetail(container, recording, state) {
  const graph = readGraph(recording);

  function tensorButton(name) {
    return element('button', { type: 'button', class: 'link', text: shortName(name, 120), title: name.slice(0, 2000), onclick: () => {
      const buffer = bufferOf(recording, name, state.values.at);
      if (buffer !== null) state.update({ buffer });
    } });
  }

  // An op and the known tensors on its other side, as buttons that choose them.
  function opItem(op, tensors) {
    const [name, type, layer, source] = recording.header.ops[op];
    return element('li', {}, element('span', { class: 'text', text: name, title: [type, layer, source].filter(Boolean).join(' · ').slice(0, 2000) }),
      tensors.length ? element('ul', {}, tensors.slice(0, MOST_READERS).map((one) => element('li', {}, tensorButton(one)))) : null);
  }

  function neighbourLists(b) {
    const node = graph.tensors.get(recording.textOf('tensor', b));
    if (!node) return [];
    const list = (title, items) => (items.length ? [element('h4', { text: title }), element('ul', { class: 'neighbours' }, items)] : []);
    return [
      ...list('Made by, from', node.producer === null ? [] : [opItem(node.producer, graph.read.get(node.producer) || [])]),
      ...list(`Read by ${formatCount(node.consumers.length)}, which make`, node.consumers.slice(0, MOST_READERS).map((op) => opItem(op, graph.made.get(op) || [])))];
  }

  return () => {
    const b = state.values.buffer;
    document.documentElement.classList.toggle('has-detail', b !== null);
    container.hidden = b === null;
    if (b === null) { container.replaceChildren(); return; }
    const { columns, textOf } = recording;
    const category = recording.categories[recording.categoryAt(b, state.values.at)];
    const role = textOf('role', b) ? `: ${shortName(textOf('role', b))}` : '';
    const waste = columns.allocated[b] - columns.requested[b];
    const type = textOf('op_type', b) ? ` (${textOf('op_type', b)})` : '';
    const fact = (label, ...value) => (value.some(Boolean) ? [element('dt', { text: label }), element('dd', { class: 'text' }, ...value.filter(Boolean))] : []);
    container.replaceChildren(
      element('div', { class: 'detail-head' },
        element('h3', { text: 'Chosen tensor' }),
        element('button', { type: 'button', text: 'Close', title: 'Close (Esc)', onclick: () => state.update({ buffer: null }) })),
      element('p', { class: 'text name', text: recording.nameOf(b) }),
      element('div', { class: 'jumps' },
        element('button', { type: 'button', text: 'Lifetime', title: 'Its lifetime among the largest', onclick: () => state.update({ tab: 'lifetimes' }) }),
        element('button', { type: 'button', text: 'Birth', title: 'Go to the instant of its birth', onclick: () => state.update({ at: Math.min(columns.born[b], recording.states - 1) }) })),
      element('dl', {},
        fact('category', swatchElement(category), ` ${CATEGORY_LABELS[category]}${role}`),
        fact('requested', sizeElement(columns.requested[b])),
        fact('allocated', sizeElement(columns.allocated[b])),
        waste > 0 ? fact('waste', sizeElement(waste)) : [],
        fact('dtype', textOf('dtype', b)), fact('shape', textOf('shape', b)),
        fact('lives', lifeText(recording, b)),
        fact('why alive', textOf('why', b)),
        fact('layer', textOf('layer', b)), fact('op', textOf('op', b) && `${textOf('op', b)}${type}`),
        fact('source', textOf('source', b))),
      ...neighbourLists(b));
  };
}

// The tensors of the page's part of the graph, and the tensors that each op makes and reads.
function readGraph({ columns, strings }) {
  const [tensors, made, read] = [new Map(), new Map(), new Map()];
  const add = (map, key, value) => { if (map.has(key)) map.get(key).push(value); else map.set(key, [value]); };
  columns.graph_tensor.forEach((place, t) => {
    const producer = columns.graph_producer[t] ? columns.graph_producer[t] - 1 : null;
    const consumers = [...columns.graph_consumer.slice(columns.graph_offset[t], columns.graph_offset[t + 1])];
    tensors.set(strings[place], { producer, consumers });
    if (producer !== null) add(made, producer, strings[place]);
    for (const op of consumers) add(read, op, strings[place]);
  });
  return { tensors, made, read };
}

// The buffer of a tensor that is alive at the instant, else its last buffer.
function bufferOf(recording, tensor, at) {
  const place = recording.strings.indexOf(tensor);
  let found = null;
  for (let b = 0; b < recording.buffers; b += 1) {
    if (recording.columns.tensor[b] !== place) continue;
    found = b;
    if (recording.isAlive(b, at)) break;
  }
  return found;
}

// Open or close the pane without moving the part of the view that was pressed last, or the first one. A
// row that the sheet would cover moves above it.
function keepInPlace(view, pane, act) {
  const { pressed } = keepInPlace;
  const anchor = pressed && view.panel.contains(pressed) ? pressed : view.panel.querySelector('.scroller, .chart');
  const before = anchor ? anchor.getBoundingClientRect().top : 0;
  act();
  if (!anchor || !anchor.isConnected) return;
  scrollBy(0, anchor.getBoundingClientRect().top - before);
  const row = view.panel.querySelector('tr.picked');
  if (!row || pane.hidden || getComputedStyle(pane).position !== 'fixed') return;
  const covered = row.getBoundingClientRect().bottom + 6 - pane.getBoundingClientRect().top;
  if (covered > 0) scrollBy(0, covered);
}
keepInPlace.pressed = null;
document.addEventListener('pointerdown', (event) => { const target = /** @type {Element} */ (event.target); if (byId('panels').contains(target)) keepInPlace.pressed = target.closest('.scroller, .chart, .card'); }, { capture: true, passive: true });
