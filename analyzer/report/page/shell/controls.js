// Choose a card: the verdict of Python for its memory replaces the one of the report.
function createCardChoice({ cards, document: doc }) {
  if (!cards.length) return;
  const title = byId('verdict-title');
  const section = title.closest('.verdict');
  const opening = { headline: title.textContent, tone: section.className, note: '' };
  const names = [['', doc.verdict.card ? `${doc.verdict.card} (this report)` : 'no other card'], ...cards.map(({ id, name }) => [id, name])];
  const choose = (id) => {
    const card = cards.find((one) => one.id === id);
    title.textContent = unbroken(card ? card.headline : opening.headline);
    section.className = card ? `verdict tone-${card.tone}` : opening.tone;
    byId('card-note').textContent = card ? `With the need of this report; kernels of another card may take other workspaces. ${card.check && `Check: ${card.check}`}` : '';
  };
  byId('card').replaceWith(selectElement('Judge for another card', names, '', choose));
  byId('card-choice').hidden = false;
}

// The controls of the timeline. They are created once, so they keep their focus.

function createControls(container, recording, axis, state, resetAll) {
  const button = (text, title, onclick) => element('button', { type: 'button', text, title, onclick });
  const steps = recording.steps.filter((step) => step.last >= step.first);
  const partOption = element('option', { value: 'part', text: 'part in view' });
  const stepSelect = steps.length > 1 ? selectElement('Zoom to a step', [['', 'All steps'], ...steps.map((step) => [String(step.index), `step ${step.number ?? step.index}`])], '', (index) => {
    const step = steps.find((candidate) => String(candidate.index) === index);
    if (step) axis.showStates(...statesOf(step)); else axis.showAll();
  }) : null;
  const axisSelect = recording.times ? selectElement('Axis', [['events', 'by event'], ['time', 'by time']], state.values.axis, (value) => state.update({ axis: value })) : null;
  const statesOf = (step) => [step.first + 1, step.last + 2];
  container.replaceChildren(...[
    stepSelect, axisSelect,
    button('−', 'Zoom out', () => axis.zoom(1 / 0.5)), button('+', 'Zoom in', () => axis.zoom(0.5)),
    button('Reset', 'Reset the page (Esc)', resetAll)].filter(Boolean));

  return function update() {
    if (axisSelect) axisSelect.value = state.values.axis;
    if (!stepSelect) return;
    const shown = steps.find((step) => axis.isView(...statesOf(step).map(axis.positionOf)));
    const value = shown ? String(shown.index) : axis.isAll() ? '' : 'part';
    if (value === 'part') stepSelect.append(partOption); else partOption.remove();
    stepSelect.value = value;
  };
}
