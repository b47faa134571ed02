// The widths of a table's columns. Numbers and short words get the room of their widest text. Names
// share the rest; if that is too little, the columns with the highest rank are dropped.

const CELL_PADDING = 20; // left and right of a cell together, in pixels
const SWATCH_WIDTH = 20; // of a swatch and the space after it
const isNumeric = ({ kind }) => kind === 'size' || kind === 'count' || kind === 'instant' || kind === 'address';
const isWhole = (column) => isNumeric(column) || column.kind === 'category' || column.kind === 'dtype' || column.kind === 'short';
const LEAST_NAME = 170; // pixels of the column of names, about twenty letters
const LEAST_TEXT = 120;
const NAME_SHARE = 0.25; // of the room, for names
const MOST_SHORT = 190; // of a column of short texts such as shapes, in pixels

// Width of a text in the font of a kind of cells, from cached widths of letters.
const letterWidths = new Map();
function textWidth(kind, text) {
  const known = letterWidths.get(kind) ?? letterWidths.set(kind, new Map()).get(kind);
  const unknown = [...new Set(text)].filter((letter) => !known.has(letter));
  if (unknown.length) measureLetters(kind, unknown, known);
  let width = 0;
  for (const letter of text) width += known.get(letter);
  return Math.ceil(width) + 1;
}

function measureLetters(kind, letters, known) {
  const times = 16; // for fractions of a pixel
  const spans = letters.map((letter) => element('span', { text: letter.repeat(times) }));
  const cell = element(kind === 'head' ? 'th' : 'td', { class: `ruler col-${kind}` }, spans);
  const part = element(kind === 'head' ? 'thead' : 'tbody', {}, element('tr', {}, cell));
  const table = element('table', { class: 'virtual unseen', 'aria-hidden': 'true' }, part);
  document.body.append(table);
  letters.forEach((letter, place) => known.set(letter, spans[place].getBoundingClientRect().width / times));
  table.remove();
}

// The room that a column needs for its label and some texts.
function neededWidth(column, texts, room) {
  const label = textWidth('head', `${column.label} ↓`);
  if (!isWhole(column)) return CELL_PADDING + Math.max(label, column.grow ? Math.max(LEAST_NAME, NAME_SHARE * room) : LEAST_TEXT);
  let widest = 0;
  for (const text of texts) widest = Math.max(widest, textWidth(column.kind, text));
  if (column.kind === 'short') widest = Math.min(widest, MOST_SHORT);
  return CELL_PADDING + Math.max(label, widest + (column.swatch ? SWATCH_WIDTH : 0));
}

// The columns that fit into `room`, and their widths. `wanted` is the width of the longest name.
function fitColumns(columns, least, wanted, room) {
  const sum = (chosen) => chosen.reduce((all, column) => all + least.get(column), 0);
  let chosen = [...columns];
  while (sum(chosen) > room) {
    const last = chosen.reduce((found, column) => ((column.rank || 0) > (found.rank || 0) ? column : found), chosen[0]);
    if (!last.rank) break;
    chosen = chosen.filter((column) => column !== last);
  }
  const widths = new Map(chosen.map((column) => [column, least.get(column)]));
  let spare = room - sum(chosen);
  let open = chosen.filter((column) => !isWhole(column));
  while (spare >= 1 && open.length) {
    const share = spare / open.reduce((all, { grow }) => all + (grow ? 2 : 1), 0);
    spare = 0;
    for (const column of open) {
      const next = widths.get(column) + share * (column.grow ? 2 : 1);
      const most = Math.max(least.get(column), wanted.get(column));
      widths.set(column, Math.min(next, most));
      spare += Math.max(0, next - most);
    }
    open = open.filter((column) => widths.get(column) < wanted.get(column));
  }
  // Share the spare room between all columns.
  if (spare >= 1) for (const column of chosen) widths.set(column, widths.get(column) + spare / chosen.length);
  return { chosen, widths };
}
