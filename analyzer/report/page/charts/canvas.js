// A canvas that follows the size of its box and the theme, and a second one above it for the cursor.

const colours = {};

function readColours(categories) {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['ink', 'muted', 'faint', 'line', 'page', 'panel', 'accent', 'limit', 'band', 'pool']) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  colours.category = categories.map((name) => style.getPropertyValue(`--${name.replace('_', '-')}`).trim());
}

function createCanvas(container, { height, label, draw, overlay = null, focusable = true }) {
  const base = element('canvas', { role: 'img', 'aria-label': label, tabindex: focusable ? 0 : null });
  const above = element('canvas', { 'aria-hidden': 'true', class: 'above' });
  container.replaceChildren(base, above);
  const chart = { canvas: base, width: 0, height: 0, draw, redraw, redrawOverlay, paintNow, setHeight, resize };
  let wanted = height;
  let pending = false;
  let pendingOverlay = false;

  function paint(canvas, paintWith) {
    const ratio = devicePixelRatio || 1;
    const context = canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, chart.width, chart.height);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    paintWith(context, chart.width, chart.height);
  }

  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; paintNow(); });
  }

  function paintNow() {
    if (chart.width <= 0) return;
    paint(base, draw);
    if (overlay) paint(above, overlay);
  }

  function redrawOverlay() {
    if (pendingOverlay || pending || !overlay) return;
    pendingOverlay = true;
    requestAnimationFrame(() => { pendingOverlay = false; if (chart.width > 0) paint(above, overlay); });
  }

  function resize() {
    const width = Math.floor(container.clientWidth);
    const ratio = devicePixelRatio || 1;
    if (width <= 0 || (width === chart.width && wanted === chart.height && base.width === Math.round(width * ratio))) return;
    chart.width = width;
    chart.height = wanted;
    container.style.height = `${wanted}px`;
    for (const canvas of [base, above]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(wanted * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${wanted}px`;
    }
    redraw();
  }

  function setHeight(pixels) { wanted = pixels; resize(); }

  new ResizeObserver(resize).observe(container);
  resize();
  return chart;
}

// A colour written as #rrggbb, as one number of an image's data.
const pixelOf = (colour) => 0xff000000 + parseInt(colour.slice(5, 7) + colour.slice(3, 5) + colour.slice(1, 3), 16);

// Dark or light ink, the one with more contrast on a colour written as #rrggbb.
function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((start) => {
    const part = parseInt(colour.slice(start, start + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue; // relative, by WCAG 2
  return luminance > 0.186 ? '#14171b' : '#ffffff'; // at 0.186 both inks have the same contrast
}

function fitText(context, text, width) {
  const shown = shortName(text, 120);
  if (context.measureText(shown).width <= width) return shown;
  const tooLong = lowestThat((length) => context.measureText(`${shown.slice(0, length)}…`).width > width, 1, shown.length);
  return tooLong > 2 ? `${shown.slice(0, tooLong - 1)}…` : '';
}
