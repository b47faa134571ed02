// The chosen tensor with its readers, in a pane next to the view, or in a sheet on narrow screens.

const MOST_READERS = 12; // ops that are listed

function createDetail(container, recording, state) {
  const readers = findReaders(recording);

  // The ops that read a tensor.
  function readerList(b) {
    const ops = readers.get(recording.textOf('tensor', b)) || [];
    if (ops.length === 0) return [];
    const items = ops.slice(0, MOST_READERS).map((op) => {
      const [name, ...about] = recording.header.ops[op];
      return element('li', { class: 'text', text: name, title: about.filter(Boolean).join(' · ').slice(0, 2000) });
    });
    return [element('h4', { text: `Read by ${formatCount(ops.length)}` }), element('ul', { class: 'neighbours' }, items)];
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
      ...readerList(b));
  };
}

// The ops that read each tensor of the page's part of the graph.
function findReaders({ columns, strings }) {
  const readers = new Map();
  columns.graph_tensor.forEach((place, t) => {
    readers.set(strings[place], [...columns.graph_consumer.slice(columns.graph_offset[t], columns.graph_offset[t + 1])]);
  });
  return readers;
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
