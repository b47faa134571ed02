// Elements and text. Text of a trace enters the page only here, as text.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') made.textContent = value;
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const SVG = 'http://www.w3.org/2000/svg';
function svgElement(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** @type {(id: string) => any} */
const byId = (id) => document.getElementById(id);

function sizeElement(sizeBytes, path = null) {
  return element('span', {
    class: 'size num', text: formatBytes(sizeBytes), title: formatExactBytes(sizeBytes),
    'data-bytes': sizeBytes, 'data-path': path,
  });
}

function swatchElement(category) {
  return svgElement('svg', { class: 'swatch', width: 10, height: 10, 'aria-hidden': 'true' },
    svgElement('rect', { width: 10, height: 10, class: `fill-${category}` }));
}

const buttonElement = (text, title, onclick, kind = null) => element('button', { type: 'button', class: kind, text, title, onclick });

function selectElement(label, choices, chosen, onchange) {
  const select = element('select', { 'aria-label': label, title: label, onchange: () => onchange(select.value) });
  for (const [value, text] of choices) {
    select.append(element('option', { value, text: shortName(text, 60), selected: value === chosen }));
  }
  return select;
}

// A line of the tooltip is a text or [category, label, bytes].
function showTooltip(event, title, lines) {
  const tooltip = byId('tooltip');
  tooltip.replaceChildren(element('strong', { text: shortName(title, 120) }), ...lines.map((line) => (
    Array.isArray(line)
      ? element('span', { class: 'line' }, line[0] ? swatchElement(line[0]) : null, element('span', { text: line[1] }), element('b', { text: formatBytes(line[2]) }))
      : element('span', { class: 'line', text: shortName(line, 160) }))));
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() { byId('tooltip').hidden = true; }

function showProblem(text) {
  byId('problems').append(element('p', { class: 'banner banner-error', text }));
}
