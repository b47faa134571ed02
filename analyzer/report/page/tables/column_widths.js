// How wide each column of a table is. What a reader compares is never cut: numbers, and words of a
// small vocabulary, get the room of their widest text. Names share what is left; where even that is
// too little, the columns with the highest rank are left out first.

const CELL_PADDING = 20; // left and right of a cell together, in pixels
const SWATCH_WIDTH = 20; // of a swatch and the space after it
const isNumeric = ({ kind }) => kind === 'size' || kind === 'count' || kind === 'instant' || kind === 'address';
const isWhole = (column) => isNumeric(column) || column.kind === 'category' || column.kind === 'dtype' || column.kind === 'short';
const LEAST_NAME = 170; // of the column of names, and of any other text: some twenty letters, in pixels
const LEAST_TEXT = 120;
const NAME_SHARE = 0.25; // of the room, that names keep before other columns are shown
const MOST_SHORT = 190; // of a column of short texts such as shapes, in pixels

// Width of a text in the font of cells of a kind, from the widths of its letters: no layout is forced
// once the letters are known.
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
  const times = 16; // so that a fraction of a pixel counts
  const spans = letters.map((letter) => element('span', { text: letter.repeat(times) }));
  const cell = element(kind === 'head' ? 'th' : 'td', { class: `ruler col-${kind}` }, spans);
  const part = element(kind === 'head' ? 'thead' : 'tbody', {}, element('tr', {}, cell));
  const table = element('table', { class: 'virtual unseen', 'aria-hidden': 'true' }, part);
  document.body.append(table);
  letters.forEach((letter, place) => known.set(letter, spans[place].getBoundingClientRect().width / times));
  table.remove();
}

// The least a column can do with, from its label and the texts that it has to show.
function neededWidth(column, texts, room) {
  const label = textWidth('head', `${column.label} ↓`);
  if (!isWhole(column)) return CELL_PADDING + Math.max(label, column.grow ? Math.max(LEAST_NAME, NAME_SHARE * room) : LEAST_TEXT);
  let widest = 0;
  for (const text of texts) widest = Math.max(widest, textWidth(column.kind, text));
  if (column.kind === 'short') widest = Math.min(widest, MOST_SHORT);
  return CELL_PADDING + Math.max(label, widest + (column.swatch ? SWATCH_WIDTH : 0));
}

// Choose the columns that fit into `room` and say how wide each is. `wanted` is what a column of
// names would take for its longest.
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
  // What no name needs goes between the columns, so that a row stays one line to the eye.
  if (spare >= 1) for (const column of chosen) widths.set(column, widths.get(column) + spare / chosen.length);
  return { chosen, widths };
}
