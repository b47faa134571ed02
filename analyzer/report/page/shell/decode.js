// The data of the page: base64 -> gzip -> a JSON header and columns (see columns.py).

const COLUMN_ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

function bytesFromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function unzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Bytes of equal significance are stored together; rebuild each number.
function readColumn(bytes, offset, { type, length, delta }) {
  const ArrayType = COLUMN_ARRAYS[type];
  const width = ArrayType.BYTES_PER_ELEMENT;
  const together = new Uint8Array(length * width);
  for (let plane = 0; plane < width; plane += 1) {
    const start = offset + plane * length;
    for (let i = 0; i < length; i += 1) together[i * width + plane] = bytes[start + i];
  }
  const numbers = new ArrayType(together.buffer);
  if (!delta) return numbers;
  const sums = new Float64Array(length);
  let sum = 0;
  for (let i = 0; i < length; i += 1) sums[i] = sum += numbers[i];
  return sums;
}

async function decodePacked(text) {
  const bytes = await unzip(bytesFromBase64(text.trim()));
  const headerLength = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerLength)));
  const columns = {};
  let offset = 4 + headerLength;
  for (const column of header.columns) {
    columns[column.name] = readColumn(bytes, offset, column);
    offset += column.length * COLUMN_ARRAYS[column.type].BYTES_PER_ELEMENT;
  }
  return { header, columns };
}
