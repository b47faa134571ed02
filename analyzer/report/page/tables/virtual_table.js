// A table of any length: only rows in view are elements. It can search, sort, filter, sum and copy CSV.
//
// columns: [{ key, label, value(row), kind: 'text' | 'short' | 'dtype' | 'category' | 'size' | 'count' | 'instant' | 'address', rank, grow, swatch, format }]
// A hidden column is searched and copied but not shown. A narrow table drops the highest rank first.
// Sorting, search and CSV use a column's value; sizes are shown in units, exact bytes on hover.

const ROW_HEIGHT = 26;

// A table whose rows may be buffers: a click chooses one, and a choice changes the page's address.
function stateTable(state, options) {
  const { bufferOf } = options;
  const ofBuffer = bufferOf && {
    onPick: (row) => { if (bufferOf(row) !== null) state.update({ buffer: bufferOf(row) }); },
    isPicked: (row) => bufferOf(row) !== null && bufferOf(row) === state.values.buffer,
  };
  return createTable({ ...ofBuffer, onChoice: () => state.touch('choices'), ...options });
}

/** @param {any} options */
function createTable({ name, columns, rows, filters = [], onPick = null, isPicked = () => false, onChoice = () => {}, initialSort, note = '' }) {
  let all = [];
  let shown = [];
  let sort = initialSort;
  let query = '';
  const chosen = {};

  const searchBox = element('input', { type: 'search', placeholder: 'Search', 'aria-label': `Search ${name}`, class: 'search', oninput: () => { query = searchBox.value; apply(); onChoice(); } });
  const filterBoxes = element('span', { class: 'filters' });
  const summary = element('span', { class: 'summary', role: 'status' });
  const copy = element('button', { type: 'button', text: 'Copy CSV', title: 'Copy the rows that are shown, with every column, as CSV', onclick: copyCsv });
  const head = element('tr', { 'aria-rowindex': 1 });
  const body = element('tbody');
  const group = element('colgroup');
  let used = columns; // without the columns of text that no row has anything for
  let fitted = { chosen: [], widths: new Map() };
  let least = new Map(); // the room that each column needs, from every text painted since the last update
  const table = element('table', { class: 'virtual', 'aria-label': name },
    group, element('thead', {}, head), body);
  const scroller = element('div', { class: 'scroller', tabindex: 0, role: 'region', 'aria-label': `${name}, scrollable`, onscroll: () => requestAnimationFrame(() => paint()) }, table);
  const root = element('div', { class: 'table-view' },
    element('div', { class: 'controls' }, searchBox, filterBoxes, copy, summary),
    note ? element('p', { class: 'note', text: unbroken(note) }) : null, scroller);
  // A new table has no width before it is in the page.
  new ResizeObserver(() => layOut()).observe(scroller);

  function update() {
    all = rows();
    used = columns.filter((column) => !column.hidden).filter((column) => column === columns[0] || isNumeric(column) || all.length === 0 || all.some((row) => column.value(row)));
    least = new Map();
    buildFilters();
    apply();
  }

  function buildFilters() {
    filterBoxes.replaceChildren(...filters.map((filter) => {
      const values = [...new Set(all.map(filter.value))].filter((value) => value !== '').sort();
      if (values.length < 2 && !chosen[filter.label]) return null;
      if (chosen[filter.label] && !values.includes(chosen[filter.label])) values.push(chosen[filter.label]);
      const option = (value) => [value, filter.text ? filter.text(value) : value];
      const some = values.length <= 40 ? values : values.filter((value) => value === chosen[filter.label]);
      const select = selectElement(filter.label, [['', `Any ${filter.label}`], ...some.map(option)], chosen[filter.label] ?? '', (value) => { chosen[filter.label] = value; apply(); onChoice(); });
      if (some !== values) select.addEventListener('focus', () => fillSelect(select, values.map(option)), { once: true });
      return select;
    }).filter(Boolean));
  }

  // A list of thousands of layers is filled when it is opened.
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
    renderSummary();
    measure();
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
    head.replaceChildren(...fitted.chosen.map((column) => {
      const sorted = column.key === sort.key;
      return element('th', { scope: 'col', class: `col-${column.kind}`, 'aria-sort': sorted ? (sort.descending ? 'descending' : 'ascending') : 'none' },
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
    [...head.querySelectorAll('button')][fitted.chosen.indexOf(column)].focus();
    onChoice();
  }

  function renderSummary() {
    const sums = columns.filter((column) => column.kind === 'size' && column.sum !== false).map((column) => {
      let sum = 0;
      for (const row of shown) sum += column.value(row) ?? 0;
      return [column.label.toLowerCase(), sum];
    });
    summary.replaceChildren(
      element('b', { text: `${formatCount(shown.length)}${shown.length < all.length ? ` of ${formatCount(all.length)}` : ''} ${all.length === 1 ? 'row' : 'rows'}` }),
      ...sums.flatMap(([label, sum]) => [' ', element('span', { class: 'num', 'data-sum': label }, `· ${label} `, sizeElement(sum))]));
  }

  function cellText(column, row) {
    const value = column.value(row);
    if (value === null || value === undefined || value === '') return '';
    if (column.format) return column.format(isNumeric(column) ? value : String(value));
    if (column.kind === 'size') return formatBytes(value);
    return isNumeric(column) ? formatCount(value) : shortName(String(value));
  }

  // The smallest and largest numbers are the widest; names count by length.
  let wanted = new Map();
  function measure() {
    wanted = new Map();
    for (const column of used) {
      if (isNumeric(column)) {
        let [low, high, smallest, largest] = [null, null, Infinity, -Infinity];
        for (const row of shown) {
          const value = column.value(row) ?? NaN;
          if (value < smallest) { smallest = value; low = row; }
          if (value > largest) { largest = value; high = row; }
        }
        need(column, [low, high].filter((row) => row !== null).map((row) => cellText(column, row)));
      } else if (isWhole(column)) need(column, []);
      else {
        let most = 0;
        for (const row of shown) most = Math.max(most, String(column.value(row) ?? '').length);
        need(column, []);
        wanted.set(column, CELL_PADDING + textWidth(column.kind, '0') * Math.min(most, 120) + 4);
      }
    }
    fit();
  }

  // Record the room for some texts; return whether it is more than before.
  function need(column, texts) {
    const needed = neededWidth(column, texts, scroller.clientWidth);
    if (needed <= (least.get(column) ?? -1)) return false;
    least.set(column, needed);
    return true;
  }

  let width = 0; // what the columns were last fitted to
  function fit() {
    width = scroller.clientWidth;
    if (width === 0) return;
    fitted = fitColumns(used, least, wanted, width);
    group.replaceChildren(...fitted.chosen.map((column) => {
      const made = element('col');
      made.style.width = `${fitted.widths.get(column)}px`;
      return made;
    }));
    table.style.width = `${fitted.chosen.reduce((all_, column) => all_ + fitted.widths.get(column), 0)}px`;
    renderHead();
  }

  function layOut() {
    if (scroller.clientWidth === width || scroller.clientWidth === 0) return;
    for (const column of used) if (!isWhole(column)) least.set(column, neededWidth(column, [], scroller.clientWidth));
    fit();
    paint();
  }

  function paint(reset = false) {
    if (reset === true) scroller.scrollTop = Math.min(scroller.scrollTop, Math.max(0, shown.length * ROW_HEIGHT - 40));
    const height = Math.min(shown.length, 18) * ROW_HEIGHT + 32;
    scroller.style.height = `${Math.max(height, 90)}px`;
    if (fitted.chosen.length === 0) return; // not in the page yet
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW_HEIGHT) - 6);
    const last = Math.min(shown.length, first + 34);
    const inView = shown.slice(first, last);
    const grown = used.filter(isWhole).map((column) => need(column, inView.map((row) => cellText(column, row))));
    if (grown.some(Boolean)) fit();
    const spacer = (rowsAway) => {
      const row = element('tr', { 'aria-hidden': 'true', class: 'spacer' }, element('td'));
      row.firstChild.style.height = `${rowsAway * ROW_HEIGHT}px`;
      return row;
    };
    table.setAttribute('aria-rowcount', shown.length + 1);
    if (shown.length === 0) {
      body.replaceChildren(element('tr', {}, element('td', { colspan: fitted.chosen.length, class: 'empty', text: all.length ? 'No rows match.' : 'No rows at this instant.' })));
      return;
    }
    const focused = body.contains(document.activeElement) ? document.activeElement.closest('tr').getAttribute('aria-rowindex') : null;
    body.replaceChildren(spacer(first), ...inView.map((row, i) => rowElement(row, first + i)), spacer(shown.length - last));
    if (focused) body.querySelector(`tr[aria-rowindex="${focused}"] button`)?.focus({ preventScroll: true });
  }

  function rowElement(row, place) {
    const picked = isPicked(row);
    const made = element('tr', { 'aria-rowindex': place + 2, class: picked ? 'picked' : null, 'aria-selected': picked ? 'true' : null },
      fitted.chosen.map((column) => cellElement(column, row)));
    if (onPick) made.addEventListener('click', () => onPick(row));
    return made;
  }

  function cellElement(column, row) {
    const value = column.value(row);
    const cell = element(column === columns[0] ? 'th' : 'td', { scope: column === columns[0] ? 'row' : null, class: `col-${column.kind}${isNumeric(column) ? ' num' : ''}` });
    if (value === null || value === undefined || value === '') return cell;
    if (column.kind === 'size' && !column.format) cell.append(sizeElement(value));
    else if (isNumeric(column)) cell.append(cellText(column, row));
    else {
      const text = String(value);
      if (column.swatch) cell.append(swatchElement(column.swatch(row)), ' ');
      const room = fitted.widths.get(column) - CELL_PADDING - (column.swatch ? SWATCH_WIDTH : 0);
      const whole = cellText(column, row);
      const fits = isWhole(column) && textWidth(column.kind, whole) <= room;
      const shownText = fits ? whole : middleName(text, Math.floor(room / textWidth(column.kind, '0000000000') * 10));
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
      // Pages opened from disk cannot use the clipboard API.
      const area = element('textarea', { class: 'unseen', text: csv });
      document.body.append(area);
      area.select();
      done = document.execCommand('copy');
      area.remove();
    }
    copy.textContent = done ? `Copied ${formatCount(shown.length)} rows` : 'Copying is not allowed here';
    setTimeout(() => { copy.textContent = 'Copy CSV'; }, 1800);
  }

  // The reader's choices: words, order, filters. Unknown keys and filters are ignored.
  function choices() {
    const isInitial = sort.key === initialSort.key && sort.descending === initialSort.descending;
    return { words: query, sort: isInitial ? '' : `${sort.descending ? '-' : ''}${sort.key}`, filters: { ...chosen } };
  }

  function choose({ words = '', sort: order = '', filters: wantedFilters = {} }) {
    const before = JSON.stringify(choices());
    searchBox.value = query = words;
    const key = order.replace(/^-/, '');
    sort = columns.some((column) => column.key === key) ? { key, descending: order.startsWith('-') } : initialSort;
    for (const { label } of filters) chosen[label] = wantedFilters[label] ?? '';
    if (JSON.stringify(choices()) === before) return;
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
    root, update, choices, choose, reveal, csv: () => toCsv(columns, shown), rows: () => shown, repaint: () => paint(),
    focusSearch: () => searchBox.focus(),
    reset: () => choose({}),
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
  const lines = [columns.map((column) => cell(column.csv || column.label))];
  for (const row of rows) lines.push(columns.map((column) => cell(column.value(row))));
  return `${lines.map((line) => line.join(',')).join('\r\n')}\r\n`;
}
