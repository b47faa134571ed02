// A table that draws only the rows in view: sort, filter, sum and copy CSV.
//
// columns: [{ key, label, value(row), kind: 'text' | 'short' | 'category' | 'size' | 'count' | 'address', grow, swatch, format }]
// A hidden column is searched and copied but not shown. A narrow table scrolls sideways; its first column stays.
// Sorting, search and CSV use a column's value; sizes are shown in units, exact bytes on hover.

const ROW_HEIGHT = 26;
const MOST_CHOICES = 200; // of a filter; the search finds rows of more layers
const isNumeric = ({ kind }) => kind === 'size' || kind === 'count' || kind === 'address';

// A table whose rows may be buffers: a click chooses one.
function stateTable(state, options) {
  const { bufferOf } = options;
  const ofBuffer = bufferOf && {
    onPick: (row) => { if (bufferOf(row) !== null) state.update({ buffer: bufferOf(row) }); },
    isPicked: (row) => bufferOf(row) !== null && bufferOf(row) === state.values.buffer,
  };
  const marks = {
    buffersOf: bufferOf ? (row) => (bufferOf(row) === null ? [] : [bufferOf(row)]) : () => [],
    marked: () => state.values.marked || [],
    onPoint: (buffers) => markBuffers(state, buffers),
  };
  const small = { isSmallShown: () => state.values.isSmallShown, onShowSmall: () => state.update({ isSmallShown: !state.values.isSmallShown }) };
  return createTable({ ...ofBuffer, ...marks, ...small, ...options });
}

/** @param {any} options */
function createTable({ name, columns, rows, filters = [], onPick = null, isPicked = () => false, initialSort, note = '',
  isSmall = null, isSmallShown = () => true, onShowSmall = () => {}, buffersOf = () => [], marked = () => [], onPoint = () => {} }) {
  let all = [];
  let matching = []; // the rows that are summed and copied
  let shown = []; // without small rows, unless the reader asks for them or searches
  let sort = initialSort;
  let query = '';
  let used = columns; // without hidden columns and columns of text without any text
  let widest = new Map(); // pixels of each column, so that it does not shrink while the table scrolls
  let applying = null; // the frame that applies the search
  const chosen = {};

  const searchBox = element('input', { type: 'search', placeholder: 'Search', 'aria-label': `Search ${name}`, class: 'search', oninput: applySoon });
  const filterBoxes = element('span', { class: 'filters' });
  const summary = element('span', { class: 'summary', role: 'status' });
  const copy = element('button', { type: 'button', text: 'Copy CSV', title: 'Copy the rows that match, with every column, as CSV', onclick: copyCsv });
  const smallButton = element('button', { type: 'button', hidden: true, onclick: onShowSmall });
  const head = element('tr', { 'aria-rowindex': 1 });
  const rowOf = new WeakMap();
  const withRow = (act) => (event) => { const row = rowOf.get(event.target.closest('tr')); if (row !== undefined) act(row); };
  const body = element('tbody', { onpointerleave: () => onPoint([]), onpointerover: withRow((row) => onPoint(buffersOf(row))), onclick: onPick && withRow(onPick) });
  const table = element('table', { class: 'virtual', 'aria-label': name }, element('thead', {}, head), body);
  const scroller = element('div', { class: 'scroller', tabindex: 0, role: 'region', 'aria-label': `${name}, scrollable`, onscroll: () => requestAnimationFrame(() => paint()) }, table);
  const root = element('div', { class: 'table-view' },
    element('div', { class: 'controls' }, searchBox, filterBoxes, smallButton, copy, summary),
    note ? element('p', { class: 'note', text: unbroken(note) }) : null, scroller);
  let paintedWidth = 0; // a new table has no width before it is in the page
  new ResizeObserver(() => {
    if (scroller.clientWidth === paintedWidth) return;
    paintedWidth = scroller.clientWidth;
    renderHead();
    paint();
  }).observe(scroller);

  function update() {
    paintedWidth = scroller.clientWidth;
    all = rows();
    used = columns.filter((column) => !column.hidden && (column === columns[0] || isNumeric(column) || all.length === 0 || all.some((row) => column.value(row))));
    buildFilters();
    apply();
  }

  function buildFilters() {
    filterBoxes.replaceChildren(...filters.map((filter) => {
      const values = [...new Set(all.map(filter.value))].filter((value) => value !== '').sort();
      const wanted = chosen[filter.label];
      if (!wanted && (values.length < 2 || values.length > MOST_CHOICES)) return null;
      if (wanted && !values.includes(wanted)) values.push(wanted);
      const choices = values.map((value) => [value, filter.text ? filter.text(value) : value]);
      return selectElement(filter.label, [['', `Any ${filter.label}`], ...choices], wanted ?? '', (value) => { chosen[filter.label] = value; apply(); });
    }).filter(Boolean));
  }

  // Apply the search once per frame, however fast the reader types.
  function applySoon() {
    query = searchBox.value;
    applying ??= requestAnimationFrame(() => { applying = null; apply(); });
  }

  function apply() {
    const top = scroller.scrollTop;
    const wanted = filters.filter(({ label }) => chosen[label]);
    const searches = query.toLowerCase().split(/\s+/).filter(Boolean).map(searchFor);
    matching = all.filter((row) => wanted.every(({ label, value }) => String(value(row)) === chosen[label]) && searches.every((isFound) => isFound(row)));
    showRows();
    renderSummary();
    renderHead();
    toTop(top);
  }

  // Whether a row contains a word. Rows share many texts, so each text is searched once.
  function searchFor(word) {
    const textColumns = columns.filter((column) => !isNumeric(column));
    const known = new Map();
    const isIn = (text) => {
      if (!known.has(text)) known.set(text, String(text ?? '').toLowerCase().includes(word));
      return known.get(text);
    };
    return (row) => textColumns.some((column) => isIn(column.value(row)));
  }

  // Only rows that can be seen are sorted.
  function showRows() {
    const large = isSmall && !query ? matching.filter((row) => !isSmall(row)) : matching;
    const small = matching.length - large.length;
    shown = sorted(isSmallShown() || large.length === 0 ? matching : large);
    smallButton.hidden = small === 0 || large.length === 0;
    smallButton.textContent = `${isSmallShown() ? 'Hide' : 'Show'} ${formatCount(small)} below 0.1 %`;
  }

  function sorted(rowsToSort) {
    const column = columns.find((candidate) => candidate.key === sort.key) || columns[0];
    const direction = sort.descending ? -1 : 1;
    const keys = rowsToSort.map(column.value);
    const compare = isNumeric(column)
      ? (a, b) => direction * ((keys[a] ?? -1) - (keys[b] ?? -1))
      : (a, b) => direction * (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : 0);
    return Array.from(Uint32Array.from(keys.keys()).sort(compare), (place) => rowsToSort[place]);
  }

  function renderHead() {
    widest = new Map();
    head.replaceChildren(...used.map((column) => {
      const sorted = column.key === sort.key;
      const made = element('th', { scope: 'col', class: `col-${column.kind} of-${column.key}`, 'aria-sort': sorted ? (sort.descending ? 'descending' : 'ascending') : 'none' },
        element('button', { type: 'button', title: column.title || `Sort by ${column.label.toLowerCase()}`, onclick: () => sortBy(column) },
          column.label, element('span', { class: 'arrow', 'aria-hidden': 'true', text: sorted ? (sort.descending ? ' ↓' : ' ↑') : '' })));
      return made;
    }));
  }

  function sortBy(column) {
    sort = { key: column.key, descending: sort.key === column.key ? !sort.descending : isNumeric(column) };
    const top = scroller.scrollTop;
    shown = sorted(shown);
    renderHead();
    toTop(top);
    head.children[used.indexOf(column)].querySelector('button').focus();
  }

  function renderSummary() {
    const sums = columns.filter((column) => column.kind === 'size' && column.sum !== false)
      .map((column) => [column.label.toLowerCase(), matching.reduce((sum, row) => sum + (column.value(row) ?? 0), 0)]);
    summary.replaceChildren(
      element('b', { text: `${formatCount(matching.length)}${matching.length < all.length ? ` of ${formatCount(all.length)}` : ''} ${all.length === 1 ? 'row' : 'rows'}` }),
      ...sums.flatMap(([label, sum]) => [' ', element('span', { class: 'num', 'data-sum': label }, `· ${label} `, sizeElement(sum))]));
  }

  function toTop(top) {
    const last = Math.max(0, shown.length * ROW_HEIGHT - 40);
    if (top > last) scroller.scrollTop = last;
    paint(Math.min(top, last));
  }

  // Sizes are read before anything is written, so that the browser lays out once.
  function paint(top = scroller.scrollTop) {
    if (paintedWidth === 0) return;
    const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - 6);
    const last = Math.min(shown.length, first + 34);
    const spacer = (rowsAway) => {
      const row = element('tr', { 'aria-hidden': 'true', class: 'spacer' }, element('td'));
      row.firstChild.style.height = `${rowsAway * ROW_HEIGHT}px`;
      return row;
    };
    scroller.style.height = `${Math.max(Math.min(shown.length, 18) * ROW_HEIGHT + 34, 90)}px`;
    table.setAttribute('aria-rowcount', shown.length + 1);
    const focused = body.contains(document.activeElement) ? document.activeElement.closest('tr').getAttribute('aria-rowindex') : null;
    if (shown.length) body.replaceChildren(spacer(first), ...shown.slice(first, last).map((row, i) => rowElement(row, first + i)), spacer(shown.length - last));
    else body.replaceChildren(element('tr', {}, element('td', { colspan: used.length, class: 'empty', text: all.length ? 'No rows match.' : 'No rows at this instant.' })));
    if (focused) body.querySelector(`tr[aria-rowindex="${focused}"] button`)?.focus({ preventScroll: true });
    const widths = Array.from(head.children, (header) => header.offsetWidth);
    used.forEach((column, place) => {
      if (widths[place] <= (widest.get(column) || 0)) return;
      widest.set(column, widths[place]);
      head.children[place].style.minWidth = `${widths[place]}px`;
    });
  }

  function rowElement(row, place) {
    const picked = isPicked(row);
    const made = element('tr', { 'aria-rowindex': place + 2, class: picked ? 'picked' : null, 'aria-selected': picked ? 'true' : null },
      used.map((column) => cellElement(column, row)));
    rowOf.set(made, row);
    return made;
  }

  // Mark the rows of the buffers that are marked in any view.
  function paintMarks() {
    const buffers = new Set(marked());
    for (const made of body.children) {
      const row = rowOf.get(made);
      made.classList.toggle('marked', row !== undefined && buffersOf(row).some((b) => buffers.has(b)));
    }
  }

  function cellElement(column, row) {
    const value = column.value(row);
    const isName = column === columns[0];
    const cell = element(isName ? 'th' : 'td', { scope: isName ? 'row' : null, class: `col-${column.kind} of-${column.key}${isNumeric(column) ? ' num' : ''}` });
    if (value === null || value === undefined || value === '') return cell;
    if (column.kind === 'size' && !column.format) cell.append(sizeElement(value));
    else if (isNumeric(column)) cell.append(column.format ? column.format(value) : formatCount(value));
    else {
      const text = String(value);
      const letters = Math.max(16, Math.floor(paintedWidth / (column.grow ? 30 : 50)));
      const shownText = column.format ? column.format(text) : middleName(text, column.kind === 'text' ? letters : 60);
      if (column.swatch) cell.append(swatchElement(column.swatch(row)), ' ');
      if (isName && onPick) cell.append(element('button', { type: 'button', class: 'link', text: shownText, title: text.slice(0, 2000) }));
      else { cell.append(shownText); cell.title = text.slice(0, 2000); }
    }
    return cell;
  }

  async function copyCsv() {
    const csv = toCsv(columns, sorted(matching));
    let done = true;
    try {
      await navigator.clipboard.writeText(csv);
    } catch (refused) {
      // Pages opened from disk cannot use the clipboard API.
      const area = element('textarea', { class: 'unseen', text: csv });
      document.body.append(area);
      area.select();
      done = document.execCommand('copy');
      area.remove();
    }
    copy.textContent = done ? `Copied ${formatCount(matching.length)} rows` : 'Copying is not allowed here';
    setTimeout(() => { copy.textContent = 'Copy CSV'; }, 1800);
  }

  // Back to all rows in the first order.
  function reset() {
    const isInitial = sort.key === initialSort.key && sort.descending === initialSort.descending;
    if (isInitial && !query && !Object.values(chosen).some(Boolean)) return;
    searchBox.value = query = '';
    sort = initialSort;
    for (const { label } of filters) chosen[label] = '';
    buildFilters();
    apply();
  }

  // Scroll the rows so that the picked one is in view.
  function reveal() {
    const place = shown.findIndex(isPicked);
    const top = place * ROW_HEIGHT;
    if (place >= 0 && (top < scroller.scrollTop || top + 2 * ROW_HEIGHT > scroller.scrollTop + scroller.clientHeight)) scroller.scrollTop = top - 4 * ROW_HEIGHT;
    paint();
  }

  return {
    root, update, reset, reveal, csv: () => toCsv(columns, sorted(matching)), rows: () => sorted(matching), repaint: () => paint(), mark: paintMarks,
    focusSearch: () => searchBox.focus(),
  };
}

// Exact bytes; an apostrophe before a text that a spreadsheet would run as a formula.
function toCsv(columns, rows) {
  const cell = (value) => {
    let text = value === null || value === undefined ? '' : String(value);
    // eslint-disable-next-line no-control-regex -- a spreadsheet passes over U+0000 before a formula
    if (typeof value === 'string' && /^[\s\u0000]*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns.map((column) => cell(column.csv || column.label)), ...rows.map((row) => columns.map((column) => cell(column.value(row))))];
  return `${lines.map((line) => line.join(',')).join('\r\n')}\r\n`;
}
