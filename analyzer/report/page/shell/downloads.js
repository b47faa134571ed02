// Files for the reader: a chart as PNG or SVG, the timeline as CSV.

function download(name, blob) {
  const link = element('a', { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A drawing context that writes SVG: the part of a canvas' context that the charts use.
function createSvgContext(width, height) {
  const measuring = document.createElement('canvas').getContext('2d');
  const parts = [];
  let path = '';
  let dash = '';
  const number = (value) => Number(value.toFixed(2));
  const escape = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const attributes = (values) => Object.entries(values).map(([name, value]) => ` ${name}="${escape(value)}"`).join('');
  const add = (tag, values, text = '') => parts.push(`<${tag}${attributes(values)}>${text}</${tag}>`);
  const filled = () => ({ fill: context.fillStyle, opacity: context.globalAlpha });
  const stroked = () => ({ fill: 'none', stroke: context.strokeStyle, 'stroke-width': context.lineWidth, 'stroke-dasharray': dash, opacity: context.globalAlpha });
  const box = (x, y, w, h) => ({ x: number(Math.min(x, x + w)), y: number(Math.min(y, y + h)), width: number(Math.abs(w)), height: number(Math.abs(h)) });
  const anchors = { left: 'start', center: 'middle', right: 'end' };
  const write = (text, x, y, style) => add('text', { x: number(x), y: number(y), 'text-anchor': anchors[context.textAlign], 'dominant-baseline': 'middle', ...style }, escape(text));

  const context = {
    fillStyle: '', strokeStyle: '', lineWidth: 1, lineJoin: 'round', globalAlpha: 1, textAlign: 'left', textBaseline: 'middle', font: '11px system-ui, sans-serif',
    beginPath() { path = ''; },
    moveTo(x, y) { path += `M${number(x)} ${number(y)}`; },
    lineTo(x, y) { path += `L${number(x)} ${number(y)}`; },
    rect(x, y, w, h) { path += `M${number(x)} ${number(y)}h${number(w)}v${number(h)}h${number(-w)}Z`; },
    fill() { add('path', { d: path, ...filled() }); },
    stroke() { add('path', { d: path, ...stroked() }); },
    fillRect(x, y, w, h) { add('rect', { ...box(x, y, w, h), ...filled() }); },
    strokeRect(x, y, w, h) { add('rect', { ...box(x, y, w, h), ...stroked() }); },
    fillText(text, x, y) { write(text, x, y, filled()); },
    strokeText(text, x, y) { write(text, x, y, { ...stroked(), 'stroke-linejoin': 'round' }); },
    measureText(text) { measuring.font = context.font; return measuring.measureText(text); },
    setLineDash(lengths) { dash = lengths.join(' '); },
    drawImage(image, x, y, w, h) { add('image', { href: image.toDataURL(), ...box(x, y, w, h) }); },
  };
  const toText = () => `<svg xmlns="${SVG}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="11">`
    + `<rect width="${width}" height="${height}" fill="${colours.page}"/>${parts.join('\n')}</svg>\n`;
  return { context, toText };
}

function chartToSvg(chart) {
  const { context, toText } = createSvgContext(chart.width, chart.height);
  chart.draw(context, chart.width, chart.height);
  return toText();
}

function chartToPng(chart, done) {
  const image = element('canvas', { width: chart.canvas.width, height: chart.canvas.height });
  const context = image.getContext('2d');
  context.fillStyle = colours.page;
  context.fillRect(0, 0, image.width, image.height);
  context.drawImage(chart.canvas, 0, 0);
  image.toBlob(done, 'image/png');
}

// The bytes at each state of the part in view; times are seconds of the trace.
function timelineToCsv(recording, axis) {
  const [first, last] = axis.visibleStates();
  const used = recording.categories.map((name, code) => ({ name, line: recording.series[code] })).filter((_, code) => recording.isUsed[code]);
  const poolAt = (s) => (recording.pool && recording.pool[s] >= 0 ? recording.pool[s] : '');
  const lines = [['instant', 'time_s', 'requested_bytes', 'allocated_bytes', 'pool_bytes', ...used.map(({ name }) => `${name}_bytes`)]];
  for (let s = first; s <= last; s += 1) {
    lines.push([s - 1, recording.secondsAt(s) ?? '', recording.total[s], recording.allocated[s], poolAt(s), ...used.map(({ line }) => line[s])]);
  }
  return `${lines.map((line) => line.join(',')).join('\r\n')}\r\n`;
}

// Buttons that save a chart.
function chartButtons(chart, name) {
  return [
    buttonElement('PNG', `Save the ${name} as an image`, () => chartToPng(chart, (blob) => download(`${name}.png`, blob)), 'chart-file'),
    buttonElement('SVG', `Save the ${name} as a drawing`, () => download(`${name}.svg`, new Blob([chartToSvg(chart)], { type: 'image/svg+xml' })), 'chart-file'),
  ];
}
