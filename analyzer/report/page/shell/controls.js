// The controls of the timeline. They are created once, so they keep their focus.

function createControls(container, recording, axis, state, timeline, resetAll) {
  const steps = recording.steps.filter((step) => step.last >= step.first);
  const stepSelect = steps.length > 1 ? selectElement('Zoom to a step', [['', 'Zoom to a step'], ...steps.map((step) => [String(step.index), `step ${step.number ?? step.index}`])], '', (index) => {
    const step = steps.find((candidate) => String(candidate.index) === index);
    if (step) axis.showStates(...statesOf(step)); else axis.showAll();
  }) : null;
  const axisSelect = recording.times ? selectElement('Axis', [['events', 'by event'], ['time', 'by time']], state.values.axis, (value) => state.update({ axis: value })) : null;
  const dragSelect = selectElement('What a drag does', [['zoom', 'drag: zoom'], ['window', 'drag: window']], state.values.drag, (drag) => state.update({ drag }));
  dragSelect.title = 'A window shows the buffers that were allocated in it and still live at its end';
  const saveCsv = () => download('timeline.csv', new Blob([timelineToCsv(recording, axis)], { type: 'text/csv' }));
  const statesOf = (step) => [step.first + 1, step.last + 2];
  container.replaceChildren(...[
    stepSelect, axisSelect, dragSelect,
    buttonElement('−', 'Zoom out', () => axis.zoom(1 / 0.5)), buttonElement('+', 'Zoom in', () => axis.zoom(0.5)),
    buttonElement('Reset', 'Reset the page (Esc)', resetAll),
    ...chartButtons(timeline.chart, 'timeline'), buttonElement('CSV', 'Save the bytes at each instant in view', saveCsv)].filter(Boolean));

  return function update() {
    if (axisSelect) axisSelect.value = state.values.axis;
    dragSelect.value = state.values.drag;
    if (!stepSelect) return;
    const shown = steps.find((step) => axis.isView(...statesOf(step).map(axis.positionOf)));
    stepSelect.value = shown ? String(shown.index) : '';
  };
}
