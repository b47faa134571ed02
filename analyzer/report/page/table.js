// A table of any length: only the rows in view are elements. Search, sort, filter, sum, CSV.
//
// columns: [{ key, label, value(row), kind: 'text' | 'short' | 'category' | 'size' | 'count' | 'instant' | 'address', wide, swatch }]
// A hidden column is searched and copied but not shown.
// A column's value is what is sorted, searched and copied; sizes are shown readable, exact on hover.

const ROW_HEIGHT = 26;
const MONO_WIDTH = 7.6; // of a letter in the cells with names, in pixels
const isNumeric = ({ kind }) => kind === 'size' || kind === 'count' || kind === 'instant' || kind === 'address';

function createTable({ name, columns, rows, filters = [], onPick = null, initialSort, note = '', search = '' }) {
  let all = [];
  let shown = [];
  let sort = initialSort;
  let query = search;
  const chosen = {};
  let selected = null;

  const searchBox = element('input', { type: 'search', value: search, placeholder: 'Search', 'aria-label': `Search ${name}`, class: 'search', oninput: () => { query = searchBox.value; apply(); } });
  const filterBoxes = element('span', { class: 'filters' });
  const summary = element('span', { class: 'summary', role: 'status' });
  const copy = element('button', { type: 'button', text: 'Copy CSV', title: 'Copy the rows that are shown, as CSV', onclick: copyCsv });
  const head = element('tr', { 'aria-rowindex': 1 });
  const body = element('tbody');
  const group = element('colgroup');
  let used = columns; // without the columns of text that no row has anything for
  let letters = [];
  const table = element('table', { class: 'virtual', 'aria-label': name },
    group, element('thead', {}, head), body);
  const scroller = element('div', { class: 'scroller', tabindex: 0, role: 'region', 'aria-label': `${name}, scrollable`, onscroll: () => requestAnimationFrame(paint) }, table);
  const root = element('div', { class: 'table-view' },
    element('div', { class: 'controls' }, searchBox, filterBoxes, copy, summary),
    note ? element('p', { class: 'note', text: note }) : null, scroller);

  function update() {
    all = rows();
    used = columns.filter((column) => !column.hidden).filter((column) => column === columns[0] || isNumeric(column) || all.length === 0 || all.some((row) => column.value(row)));
    group.replaceChildren(...used.map((column) => element('col', { class: `col-${column.kind}${column.wide ? ' wide-only' : ''}${column.grow ? ' grow' : ''}` })));
    buildFilters();
    apply();
  }

  function buildFilters() {
    filterBoxes.replaceChildren(...filters.map((filter) => {
      const values = [...new Set(all.map(filter.value))].filter((value) => value !== '').sort();
      if (values.length < 2 && !chosen[filter.label]) return null;
      const option = (value) => [value, filter.text ? filter.text(value) : value];
      const some = values.length <= 40 ? values : values.filter((value) => value === chosen[filter.label]);
      const select = selectElement(filter.label, [['', `Any ${filter.label}`], ...some.map(option)], chosen[filter.label] ?? '', (value) => { chosen[filter.label] = value; apply(); });
      if (some !== values) select.addEventListener('focus', () => fillSelect(select, values.map(option)), { once: true });
      return select;
    }).filter(Boolean));
  }

  // A list of thousands of layers is made when someone opens it, not at each change of the instant.
  function fillSelect(select, choices) {
    const { value } = select;
    select.append(...choices.filter(([choice]) => choice !== value).slice(0, 5000).map(([choice, text]) => element('option', { value: choice, text: shortName(text, 60) })));
    select.value = value;
  }

  function apply() {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const textColumns = columns.filter((column) => !isNumeric(column));
    shown = all.filter((row) => filters.every((filter) => !chosen[filter.label] || String(filter.value(row)) === chosen[filter.label])
      && (words.length === 0 || matches(textColumns.map((column) => column.value(row) ?? '').join(' ').toLowerCase(), words)));
    sortRows();
    renderHead();
    renderSummary();
    paint(true);
  }
  const matches = (text, words) => words.every((word) => text.includes(word));

  function sortRows() {
    const column = columns.find((candidate) => candidate.key === sort.key) || columns[0];
    const numeric = isNumeric(column);
    const direction = sort.descending ? -1 : 1;
    const keyed = shown.map((row) => [column.value(row), row]);
    keyed.sort(([a], [b]) => direction * (numeric ? (a ?? -1) - (b ?? -1) : a < b ? -1 : a > b ? 1 : 0));
    shown = keyed.map(([, row]) => row);
  }

  function renderHead() {
    head.replaceChildren(...used.map((column) => {
      const sorted = column.key === sort.key;
      return element('th', { scope: 'col', class: `col-${column.kind}${column.wide ? ' wide-only' : ''}`, 'aria-sort': sorted ? (sort.descending ? 'descending' : 'ascending') : 'none' },
        element('button', { type: 'button', title: column.title || `Sort by ${column.label.toLowerCase()}`, onclick: () => sortBy(column) },
          column.label, element('span', { class: 'arrow', 'aria-hidden': 'true', text: sorted ? (sort.descending ? ' ↓' : ' ↑') : '' })));
    }));
  }

  function sortBy(column) {
    const numeric = isNumeric(column);
    const descending = sort.key === column.key ? !sort.descending : numeric;
    sort = { key: column.key, descending };
    sortRows();
    renderHead();
    paint(true);
    [...head.querySelectorAll('button')][used.indexOf(column)].focus();
  }

  function renderSummary() {
    const sums = columns.filter((column) => column.kind === 'size' && column.sum !== false).map((column) => {
      let sum = 0;
      for (const row of shown) sum += column.value(row) ?? 0;
      return [column.label.toLowerCase(), sum];
    });
    summary.replaceChildren(
      element('b', { text: `${formatCount(shown.length)}${shown.length < all.length ? ` of ${formatCount(all.length)}` : ''} ${all.length === 1 ? 'row' : 'rows'}` }),
      ...sums.map(([label, sum]) => element('span', { 'data-sum': label }, ` · ${label} `, sizeElement(sum))));
  }

  function paint(reset = false) {
    if (reset === true) scroller.scrollTop = Math.min(scroller.scrollTop, Math.max(0, shown.length * ROW_HEIGHT - 40));
    const height = Math.min(shown.length, 18) * ROW_HEIGHT + 32;
    scroller.style.height = `${Math.max(height, 90)}px`;
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW_HEIGHT) - 6);
    const last = Math.min(shown.length, first + 34);
    const spacer = (rowsAway) => {
      const row = element('tr', { 'aria-hidden': 'true', class: 'spacer' }, element('td'));
      row.firstChild.style.height = `${rowsAway * ROW_HEIGHT}px`;
      return row;
    };
    table.setAttribute('aria-rowcount', shown.length + 1);
    letters = [...head.children].map((cell) => Math.max(8, Math.floor((cell.clientWidth - 22) / MONO_WIDTH)));
    if (shown.length === 0) {
      body.replaceChildren(element('tr', {}, element('td', { colspan: used.filter((column) => !column.wide || innerWidth > 760).length, class: 'empty', text: all.length ? 'Nothing matches.' : 'Nothing here at this instant.' })));
      return;
    }
    body.replaceChildren(spacer(first), ...shown.slice(first, last).map((row, i) => rowElement(row, first + i)), spacer(shown.length - last));
  }

  function rowElement(row, place) {
    const picked = selected !== null && selected === row;
    const made = element('tr', { 'aria-rowindex': place + 2, class: picked ? 'picked' : null, 'aria-selected': picked ? 'true' : null },
      used.map((column, place_) => cellElement(column, row, letters[place_])));
    if (onPick) made.addEventListener('click', () => { selected = row; onPick(row); paint(); });
    return made;
  }

  function cellElement(column, row, room) {
    const value = column.value(row);
    const cell = element(column === columns[0] ? 'th' : 'td', { scope: column === columns[0] ? 'row' : null, class: `col-${column.kind}${column.wide ? ' wide-only' : ''}` });
    if (value === null || value === undefined || value === '') return cell;
    if (column.kind === 'size') cell.append(sizeElement(value));
    else if (isNumeric(column)) cell.append(column.format ? column.format(value) : formatCount(value));
    else {
      const text = String(value);
      if (column.swatch) cell.append(swatchElement(column.swatch(row)), ' ');
      const shownText = column.format ? column.format(text) : middleName(text, room);
      if (column === columns[0] && onPick) cell.append(element('button', { type: 'button', class: 'link', text: shownText, title: text.slice(0, 2000) }));
      else { cell.append(shownText); cell.title = text.slice(0, 2000); }
    }
    return cell;
  }

  async function copyCsv() {
    const csv = toCsv(columns, shown);
    let done = true;
    try {
      await navigator.clipboard.writeText(csv);
    } catch (refused) {
      // Pages opened from disk may not use the clipboard directly.
      const area = element('textarea', { class: 'unseen', text: csv });
      document.body.append(area);
      area.select();
      done = document.execCommand('copy');
      area.remove();
    }
    copy.textContent = done ? `Copied ${formatCount(shown.length)} rows` : 'Copying is not allowed here';
    setTimeout(() => { copy.textContent = 'Copy CSV'; }, 1800);
  }

  return {
    root, update, csv: () => toCsv(columns, shown), rows: () => shown, repaint: () => paint(),
    focusSearch: () => searchBox.focus(),
    setSearch(text) { searchBox.value = text; query = text; apply(); },
    search: () => query,
    reset() { searchBox.value = ''; query = ''; for (const label of Object.keys(chosen)) chosen[label] = ''; buildFilters(); apply(); },
    select(row) { selected = row; paint(); },
  };
}

// Exact bytes; a text that a spreadsheet would run as a formula is kept a text by a quote mark.
function toCsv(columns, rows) {
  const cell = (value) => {
    let text = value === null || value === undefined ? '' : String(value);
    if (typeof value === 'string' && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns.map((column) => cell(column.csv || column.label))];
  for (const row of rows) lines.push(columns.map((column) => cell(column.value(row))));
  return `${lines.map((line) => line.join(',')).join('\r\n')}\r\n`;
}
