// Decode, build the views, and let one state drive them all.

function createDetail(container, recording, state, chooseTabByName) {
  return () => {
    const b = state.values.buffer;
    container.hidden = b === null;
    if (b === null) { container.replaceChildren(); return; }
    const { columns, textOf } = recording;
    const category = recording.categories[recording.categoryAt(b, state.values.at)];
    const fact = (label, value) => (value ? [element('dt', { text: label }), element('dd', { class: 'text' }, value)] : []);
    container.replaceChildren(
      element('div', { class: 'detail-head' },
        element('strong', { class: 'text name', text: recording.nameOf(b) }),
        element('span', { class: 'jumps' },
          element('button', { type: 'button', text: 'Graph', onclick: () => chooseTabByName('graph') }),
          element('button', { type: 'button', text: 'Birth', onclick: () => state.update({ at: Math.min(columns.born[b], recording.states - 1) }) }),
          element('button', { type: 'button', text: 'Close', onclick: () => state.update({ buffer: null }) }))),
      element('dl', {},
        fact('category', [swatchElement(category), ` ${CATEGORY_LABELS[category]}${textOf('role', b) ? `: ${shortName(textOf('role', b))}` : ''}`]),
        fact('requested', sizeElement(columns.requested[b])),
        fact('allocated', [sizeElement(columns.allocated[b]), columns.allocated[b] > columns.requested[b] ? `, ${formatBytes(columns.allocated[b] - columns.requested[b])} unsplit waste` : '']),
        fact('tensor', [textOf('dtype', b), ' ', textOf('shape', b)]),
        fact('lives', lifetimeLines(recording, b).find((line) => typeof line === 'string')),
        fact('why alive', textOf('why', b)),
        fact('layer', textOf('layer', b)), fact('op', [textOf('op', b), textOf('op_type', b) ? ` (${textOf('op_type', b)})` : '']),
        fact('source', textOf('source', b))));
  };
}

function createTabs(views, state) {
  const list = byId('tabs');
  const panels = byId('panels');
  for (const view of views) {
    view.button = element('button', { type: 'button', role: 'tab', id: `tab-${view.name}`, 'aria-controls': `panel-${view.name}`, text: view.label, onclick: () => state.update({ tab: view.name }) });
    view.panel = element('section', { role: 'tabpanel', id: `panel-${view.name}`, 'aria-labelledby': `tab-${view.name}`, hidden: true });
    list.append(view.button);
    panels.append(view.panel);
  }
  list.addEventListener('keydown', (event) => {
    const forward = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    if (!forward) return;
    const place = views.findIndex((view) => view.name === state.values.tab);
    const next = views[(place + forward + views.length) % views.length];
    state.update({ tab: next.name });
    next.button.focus();
  });
}

function start(decoded) {
  const recording = createRecording(decoded);
  const { comparison } = recording.header;
  const asked = readHash();
  const inRange = (s) => s !== null && s >= 0 && s < recording.states;
  const state = createState({
    at: inRange(asked.at === null ? null : asked.at + 1) ? asked.at + 1 : recording.peakState,
    buffer: asked.buffer !== null && asked.buffer >= 0 && asked.buffer < recording.buffers ? asked.buffer : null,
    tab: null, viewKey: '', axis: asked.axis === 'time' && recording.times ? 'time' : 'events',
    layerMode: asked.layerMode === 'source' ? 'source' : 'layer',
    measure: ICICLE_MEASURES.some(([name]) => name === asked.measure) ? asked.measure : 'instant',
    search: asked.search,
  });
  readColours(recording.categories);
  const axis = createAxis(recording, state);
  axis.useTime(state.values.axis === 'time');
  axis.reset();
  showPeakStep(recording, axis);
  const initialView = axis.view;
  if (inRange(asked.from) && asked.to !== null && asked.to > asked.from) axis.setView(axis.positionOf(asked.from), axis.positionOf(asked.to));

  const timeline = createTimeline(byId('timeline'), recording, axis, state);
  const minimap = createMinimap(byId('minimap'), recording, axis, state);
  const views = [
    { name: 'tensors', label: 'Tensors', make: (panel) => tableView(panel, createTensorTable(recording, state), ['at']) },
    { name: 'lifetimes', label: 'Lifetimes', make: (panel) => createLifetimes(panel, recording, axis, state) },
    { name: 'layers', label: 'Layers', make: (panel) => createIcicle(panel, recording, axis, state) },
    { name: 'ops', label: 'Ops', make: (panel) => tableView(panel, createOpTable(recording, state), ['at']) },
    { name: 'retained', label: 'Retained', make: (panel) => tableView(panel, createRetainedTable(recording, state), []) },
    { name: 'map', label: 'Allocator map', make: (panel) => createMap(panel, recording, axis, state) },
    { name: 'graph', label: 'Graph', make: (panel) => createGraph(panel, recording, state) },
    { name: 'findings', label: 'Findings', make: (panel) => renderFindings(panel, recording.document.findings || []) },
  ];
  if (comparison) views.unshift({ name: 'compare', label: comparison.a.kind === comparison.b.kind ? 'Difference' : 'Predicted and measured', make: (panel) => createCompare(panel, comparison) });
  createTabs(views, state);
  const chooseTabByName = (name) => state.update({ tab: name });
  const detailBox = element('aside', { id: 'detail', class: 'detail', 'aria-label': 'Chosen tensor', hidden: true });
  byId('panels').before(detailBox);
  const renderDetail = createDetail(detailBox, recording, state, chooseTabByName);
  const current = () => views.find((view) => view.name === state.values.tab) || views[0];

  function showTab(keys) {
    for (const view of views) {
      const chosen = view === current();
      view.button.setAttribute('aria-selected', String(chosen));
      view.button.tabIndex = chosen ? 0 : -1;
      view.panel.hidden = !chosen;
    }
    const view = current();
    if (!view.content) { view.content = view.make(view.panel); view.seen = new Set(['shown', 'at', 'buffer', 'viewKey', 'measure', 'layerMode']); }
    for (const key of keys) view.seen.add(key);
    if (keys.has('tab') && view.content.chart) view.content.chart.resize();
    view.content.update(view.seen);
    view.seen = new Set();
  }

  function onChange(keys) {
    const started = performance.now();
    if (keys.has('axis')) { axis.useTime(state.values.axis === 'time'); axis.reset(); keys.add('viewKey'); }
    if (keys.has('viewKey')) { timeline.chart.redraw(); minimap.redraw(); } else if (keys.has('at')) timeline.chart.redrawOverlay();
    if (keys.has('at')) renderInstant(recording, state);
    if (keys.has('buffer') || keys.has('at')) renderDetail();
    for (const view of views) if (view.content) for (const key of keys) view.seen.add(key);
    showTab(keys);
    renderControls();
    saveHash();
    report.lastChangeMs = performance.now() - started;
  }

  function saveHash() {
    const { values } = state;
    const [from, to] = axis.visibleStates();
    const isInitial = axis.view[0] === initialView[0] && axis.view[1] === initialView[1];
    const view = current();
    writeHash({
      tab: view === views[0] ? null : view.name, at: values.at === recording.peakState ? null : values.at - 1,
      from: isInitial ? null : from, to: isInitial ? null : to + 1, buffer: values.buffer,
      axis: values.axis === 'time' ? 'time' : null, by: values.layerMode === 'source' ? 'source' : null,
      size: values.measure === 'instant' ? null : values.measure,
    });
  }

  function renderControls() {
    const button = (text, title, onclick, disabled = false) => element('button', { type: 'button', text, title, onclick, disabled });
    const stepChoices = recording.steps.filter((step) => step.last >= step.first).map((step) => [String(step.index), `step ${step.number ?? step.index}`]);
    byId('timeline-controls').replaceChildren(...[
      stepChoices.length > 1 ? selectElement('Zoom to a step', [['', 'All steps'], ...stepChoices], '', (index) => {
        const step = recording.steps.find((candidate) => String(candidate.index) === index);
        if (step) axis.setView(axis.positionOf(step.first + 1), axis.positionOf(step.last + 2)); else axis.reset();
      }) : null,
      recording.times ? selectElement('Axis', [['events', 'by event'], ['time', 'by time']], state.values.axis, (value) => state.update({ axis: value })) : null,
      button('−', 'Zoom out', () => axis.zoom(1 / 0.5)), button('+', 'Zoom in', () => axis.zoom(0.5)),
      button('Reset', 'All of it (Esc)', () => axis.reset(), axis.isReset())].filter(Boolean));
  }

  function resetAll() {
    axis.reset();
    state.update({ buffer: null });
    hideTooltip();
    const { content } = current();
    if (content) content.reset();
  }

  function redrawAll() {
    readColours(recording.categories);
    timeline.chart.redraw();
    minimap.redraw();
    for (const view of views) if (view.content && view.content.chart) view.content.chart.redraw();
  }

  state.subscribe(onChange);
  attachTheme(redrawAll);
  attachPrint(timeline.chart, recording.categories);
  attachKeys({ state, recording, axis, currentView: () => current().content, chooseTab: (place) => { if (views[place]) state.update({ tab: views[place].name }); }, resetAll });
  document.addEventListener('click', (event) => {
    const instant = event.target.closest('[data-instant]');
    if (instant) {
      event.preventDefault();
      state.update({ at: Math.min(Number(instant.dataset.instant) + 1, recording.states - 1) });
      axis.showState(state.values.at);
      byId('explore').scrollIntoView({ block: 'start' });
      return;
    }
    const link = event.target.closest('[data-tab-link]');
    if (!link) return;
    event.preventDefault();
    state.update({ tab: link.dataset.tabLink });
    byId('tabs').scrollIntoView({ block: 'start' });
  });
  Object.assign(report, { state, recording, axis, timeline, minimap, views, current, formatBytes, shortName });
  renderInstant(recording, state);
  state.update({ tab: views.some((view) => view.name === asked.tab) ? asked.tab : views[0].name });
  renderDetail();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    report.readyMs = performance.now();
    document.documentElement.dataset.ready = 'true';
  }));
}

// Building a model and tracing it can take a hundred times the events of a step, and the first step
// begins with them: begin where the step of the peak moves, with some of what is around it. The small
// chart shows the whole, Esc goes there.
function showPeakStep(recording, axis) {
  const step = recording.stepAt(recording.peakState);
  if (!step) return;
  const [from, to] = [axis.positionOf(firstMove(recording, step)), axis.positionOf(step.last + 2)];
  const [first, last] = axis.whole();
  if (to - from < 0.25 * (last - first)) axis.setView(from - 0.15 * (to - from), to + 0.15 * (to - from));
}

function firstMove({ total, peakState }, step) {
  const start = step.first + 1;
  const enough = 0.05 * total[peakState];
  let s = start;
  while (s < peakState && Math.abs(total[s] - total[start]) < enough) s += 1;
  return s - start > 0.5 * (step.last - step.first) ? s : start;
}

function tableView(panel, table, drivenBy) {
  panel.append(table.root);
  return {
    update(keys) { if (keys.has('shown') || drivenBy.some((key) => keys.has(key))) table.update(); },
    focusSearch: table.focusSearch, reset: table.reset, table,
  };
}

const report = window.memoryReport = {};
decodePacked(byId('packed').textContent).then((decoded) => {
  report.decodedMs = performance.now();
  start(decoded);
}).catch((problem) => {
  showProblem(`The charts could not be drawn: ${problem.message} The answer and the largest rows are on this page.`);
  document.documentElement.classList.remove('js');
  throw problem;
});
