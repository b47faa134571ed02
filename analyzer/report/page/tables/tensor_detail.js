// The chosen tensor, in a pane next to the view, or in a sheet on narrow screens.

function createDetail(container, recording, state) {
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
        element('button', { type: 'button', text: 'Graph', title: 'Its producer and readers', onclick: () => state.update({ tab: 'graph' }) }),
        element('button', { type: 'button', text: 'Lifetime', title: 'Its lifetime among the largest', onclick: () => state.update({ tab: 'lifetimes' }) }),
        element('button', { type: 'button', text: 'Birth', title: 'Go to the instant of its birth', onclick: () => state.update({ at: Math.min(columns.born[b], recording.states - 1) }) })),
      element('dl', {},
        fact('category', swatchElement(category), ` ${CATEGORY_LABELS[category]}${role}`),
        fact('requested', sizeElement(columns.requested[b])),
        fact('allocated', sizeElement(columns.allocated[b])),
        waste > 0 ? fact('waste', sizeElement(waste)) : [],
        fact('dtype', textOf('dtype', b)), fact('shape', textOf('shape', b)),
        fact('lives', lifeText(recording, b)), fact('unread', waitText(recording, b)),
        fact('why alive', textOf('why', b)),
        fact('layer', textOf('layer', b)), fact('op', textOf('op', b) && `${textOf('op', b)}${type}`),
        fact('source', textOf('source', b))));
  };
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
