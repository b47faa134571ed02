// Keys that work anywhere on the page, and redrawing for print and for another theme.

function attachKeys({ state, recording, axis, focusSearch, chooseTab, resetAll }) {
  const actions = {
    '/': focusSearch,
    p: () => { state.update({ at: recording.peakState }); axis.showState(recording.peakState); },
    '?': () => byId('help').showModal(),
  };
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId('help').open) return;
    const target = /** @type {HTMLElement} */ (event.target);
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
    if (event.key === 'Escape') {
      if (typing) target.blur();
      resetAll();
      return;
    }
    if (typing) return;
    const action = actions[event.key] || (/^[1-9]$/.test(event.key) ? () => chooseTab(Number(event.key) - 1) : null);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// Paper is white: the chart is printed as an image in the light colours. Chrome prints a canvas incompletely.
function attachPrint(chart, categories) {
  const { dataset } = document.documentElement;
  let before = null;
  const draw = () => { readColours(categories); chart.paintNow(); };
  const image = element('img', { class: 'printed', alt: '' });
  chart.canvas.after(image);
  addEventListener('beforeprint', () => { before = dataset.theme ?? ''; dataset.theme = 'light'; draw(); image.src = chart.canvas.toDataURL(); });
  addEventListener('afterprint', () => {
    if (before) dataset.theme = before; else delete dataset.theme;
    draw();
  });
}

function attachTheme(redrawAll) {
  document.addEventListener('themechange', redrawAll);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawAll);
  byId('help-open').addEventListener('click', () => byId('help').showModal());
}
