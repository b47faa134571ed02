// Numbers as text. formatBytes gives the same text as analyzer/model/units.py.

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
const CATEGORY_LABELS = {
  parameter: 'Parameters', optimizer_state: 'Optimizer state', gradient: 'Gradients',
  activation: 'Activations', kv_cache: 'KV cache', input: 'Inputs', temporary: 'Temporaries',
  workspace: 'Workspace', constant: 'Constants, state', unattributed: 'Unattributed',
};

// toFixed rounds a tie up, Python rounds it to the even digit. A binary number is a tie at `digits`
// decimals only if it is an odd multiple of 1 / 2^(digits + 1).
function toFixedEven(value, digits) {
  const halves = value * 2 ** (digits + 1);
  if (!Number.isInteger(halves) || halves % 2 !== 1) return value.toFixed(digits);
  const lower = Math.floor(value * 10 ** digits);
  return ((lower % 2 ? lower + 1 : lower) / 10 ** digits).toFixed(digits);
}

function formatBytes(sizeBytes) {
  const sign = sizeBytes < 0 ? '-' : '';
  let size = Math.abs(sizeBytes);
  let unit = 0;
  while (unit + 1 < BYTE_UNITS.length && Number(toFixedEven(size, unit ? 2 : 0)) >= 1024) {
    size /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${sign}${toFixedEven(size, 0)} B`;
  return `${sign}${toFixedEven(size, size < 100 ? 2 : 1)} ${BYTE_UNITS[unit]}`;
}

const formatCount = new Intl.NumberFormat('en-US').format;
const formatExactBytes = (sizeBytes) => `${formatCount(sizeBytes)} bytes`;
const formatTick = (sizeBytes) => formatBytes(sizeBytes).replace(/\.0+ /, ' ').replace(/(\.\d*?)0+ /, '$1 ');
const formatShare = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)} %` : '');
const formatDelta = (sizeBytes) => (sizeBytes > 0 ? '+' : sizeBytes < 0 ? '\u2212' : '') + formatBytes(Math.abs(sizeBytes));

function formatSeconds(seconds) {
  /** @type {[number, string][]} */
  const units = [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs']];
  for (const [factor, unit] of units) {
    if (Math.abs(seconds) >= factor) return `${(seconds / factor).toFixed(seconds / factor < 100 ? 2 : 0)} ${unit}`;
  }
  return seconds === 0 ? '0 s' : `${(seconds * 1e9).toFixed(0)} ns`;
}

// A line of text never ends between a number and its unit.
const unbroken = (text) => String(text).replace(/(\d) (?=(?:B|[KMGT]iB|bytes|[mµn]?s|%|[x×])(?![A-Za-z]))/g, '$1\u00a0');

// A long name loses its middle; paths keep more of their end.
function middleName(text, limit) {
  if (!(text.length > limit)) return shortName(text);
  const head = Math.floor(limit * (text.includes('/') ? 0.15 : 0.45));
  return shortName(`${text.slice(0, head)}…${text.slice(text.length - (limit - head - 1))}`);
}

// The start of a name in one line, with controls made visible. Names may contain any character; the
// whole text is in the details.
function shortName(text, limit = 200) {
  const visible = text.length > limit ? `${text.slice(0, limit)}…` : text;
  // eslint-disable-next-line no-control-regex -- it searches for controls
  return visible.replace(/[\n\r\u2028\u2029]+/g, ' ⏎ ').replace(/[\u0000-\u001f\u202a-\u202e\u2066-\u2069]/g, '\ufffd');
}
