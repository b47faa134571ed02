// Decode the data, build the views, and connect them to one state.

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
  const opening = { at: recording.peakState, buffer: null, window: null, axis: 'events', layerMode: 'layer', part: '' };
  const state = createState({ drag: 'zoom', isSmallShown: false, ...opening, ...readChoices(), marked: null, tab: null, viewKey: '' });
  readColours(recording.categories);
  const axis = createAxis(recording, state);
  const openingStates = statesOfPeakStep(recording);
  axis.showStates(...openingStates);

  const timeline = createTimeline(byId('timeline'), recording, axis, state);
  const minimap = createMinimap(byId('minimap'), recording, axis);
  /** @type {any[]} */
  const views = [
    { name: 'tensors', label: 'Tensors', make: (panel) => tableView(panel, createTensorTable(recording, state), ['at', 'window', 'isSmallShown']) },
    { name: 'lifetimes', label: 'Lifetimes', make: (panel) => createLifetimes(panel, recording, axis, state) },
    { name: 'layers', label: 'Layers', make: (panel) => createIcicle(panel, recording, state) },
    { name: 'ops', label: 'Ops', make: (panel) => tableView(panel, createOpTable(recording, state), ['at', 'window', 'isSmallShown']) },
    { name: 'map', label: 'Allocator map', make: (panel) => createMap(panel, recording, axis, state) },
  ];
  if (comparison) views.unshift({ name: 'compare', label: comparison.a.kind === comparison.b.kind ? 'Difference' : 'Predicted and measured', make: (panel) => createCompare(panel, comparison, state) });
  createTabs(views, state);
  const detailBox = byId('detail');
  const renderDetail = createDetail(detailBox, recording, state);
  const current = () => views.find((view) => view.name === state.values.tab) || views[0];
  const renderControls = createControls(byId('timeline-controls'), recording, axis, state, timeline, resetAll);

  const tableOf = ({ content }) => (content && content.table) || null;

  function showTab(keys) {
    const view = current();
    for (const other of views) {
      other.button.setAttribute('aria-selected', String(other === view));
      other.button.tabIndex = other === view ? 0 : -1;
      other.panel.hidden = other !== view;
    }
    if (!view.content) { view.content = view.make(view.panel); view.seen = new Set(['shown', 'at', 'window', 'buffer', 'viewKey', 'layerMode', 'part']); }
    if (keys.has('tab') && view.content.chart) view.content.chart.resize();
    if (view.seen.size) view.content.update(view.seen);
    if ((keys.has('tab') || keys.has('buffer')) && tableOf(view)) tableOf(view).reveal();
    view.seen = new Set();
  }

  function onChange(keys) {
    if (keys.has('marked')) {
      timeline.chart.redrawOverlay();
      current().content?.mark?.();
      if (keys.size === 1) return;
    }
    const { at, window: chosen } = state.values;
    if (chosen && at !== chosen[1]) {
      state.values.window = null;
      keys.add('window');
    }
    if (Object.keys(CHOICES).some((key) => keys.has(key))) storeChoices(state.values);
    if ((state.values.axis === 'time') !== axis.isTime()) {
      const seen = axis.viewStates();
      axis.useTime(state.values.axis === 'time');
      axis.showStates(...seen);
      keys.add('viewKey');
    }
    if (keys.has('viewKey')) { timeline.chart.redraw(); minimap.redraw(); } else if (keys.has('at') || keys.has('window')) timeline.chart.redrawOverlay();
    if (keys.has('at') || keys.has('window')) renderInstant(recording, state);
    const drawn = [...keys].filter((key) => !UNDRAWN.includes(key));
    for (const view of views) if (view.content) for (const key of drawn) view.seen.add(key);
    const show = () => { if (keys.has('buffer') || keys.has('at')) renderDetail(); showTab(keys); };
    if (keys.has('buffer') && !keys.has('tab')) keepInPlace(current(), detailBox, show); else show();
    renderControls();
  }

  // Back to the opening state, in the current view.
  function resetAll() {
    axis.useTime(false);
    axis.showStates(...openingStates);
    state.update(opening);
    hideTooltip();
    for (const view of views) tableOf(view)?.reset();
  }

  state.subscribe(onChange);
  attachTheme(() => { readColours(recording.categories); state.touch('viewKey'); });
  attachPrint(timeline.chart, recording.categories);
  attachKeys({ state, recording, axis, focusSearch: () => tableOf(current())?.focusSearch(), chooseTab: (place) => { if (views[place]) state.update({ tab: views[place].name }); }, resetAll });
  document.addEventListener('click', (event) => {
    const instant = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest('[data-instant]'));
    if (instant) {
      event.preventDefault();
      state.update({ at: Math.min(Number(instant.dataset.instant) + 1, recording.states - 1) });
      axis.showState(state.values.at);
      byId('explore').scrollIntoView({ block: 'start' });
      return;
    }
    const link = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest('[data-tab-link]'));
    if (!link) return;
    event.preventDefault();
    state.update({ tab: link.dataset.tabLink });
    byId('tabs').scrollIntoView({ block: 'start' });
  });
  Object.assign(report, { state, recording, axis, timeline, minimap, views, current, formatBytes, shortName });
  renderInstant(recording, state);
  axis.useTime(state.values.axis === 'time' && recording.times !== null);
  axis.showStates(...openingStates);
  const linked = new URLSearchParams(location.hash.slice(1)).get('tab');
  const shown = views.find(({ name }) => name === linked) || views[0];
  state.update({ tab: shown.name, axis: axis.isTime() ? 'time' : 'events' });
  renderDetail();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.ready = 'true';
  }));
}

// Building and tracing a model can take a hundred times the events of a step and precede it. So the page
// opens at the step of the peak with a margin. The small chart shows the whole recording.
function statesOfPeakStep(recording) {
  const step = recording.stepAt(recording.peakState);
  const whole = [0, recording.states];
  if (!step) return whole;
  const [from, to] = [firstMove(recording, step), step.last + 2];
  const margin = Math.ceil(0.15 * (to - from));
  return to - from < 0.25 * recording.states ? [Math.max(0, from - margin), Math.min(recording.states, to + margin)] : whole;
}

function firstMove({ total, peakState }, step) {
  const start = step.first + 1;
  const enough = 0.05 * total[peakState];
  let s = start;
  while (s < peakState && Math.abs(total[s] - total[start]) < enough) s += 1;
  return s - start > 0.5 * (step.last - step.first) ? s : start;
}

// Changes that leave the views as they are.
const UNDRAWN = ['tab', 'axis', 'drag', 'marked'];

function tableView(panel, table, drivenBy) {
  panel.append(table.root);
  return {
    update(keys) {
      if (keys.has('shown') || drivenBy.some((key) => keys.has(key))) table.update();
      else if (keys.has('buffer')) table.repaint();
    },
    mark: table.mark, table,
  };
}

/** @type {any} */
const report = {};
Object.assign(window, { memoryReport: report });
decodePacked(byId('packed').textContent).then(start).catch((problem) => {
  showProblem(`The charts could not be drawn: ${problem.message} The answer and the largest rows are on this page.`);
  document.documentElement.classList.remove('js');
  throw problem;
});
