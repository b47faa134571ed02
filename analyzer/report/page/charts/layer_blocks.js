// Layers in the order of the model, grouped into blocks by their names: block2a_expand_conv and
// block2a_bn belong to block2a, block2a and block2b to block2.

const MOST_SIBLINGS = 40; // more layers in a row are grouped in runs

// The words of a layer's name. A number belongs to the word before it (block_1, conv2d_7), or to the
// word after it if the word before has a number (block6_2_conv).
function nameWords(name) {
  const words = [];
  const parts = name.split('_');
  let held = '';
  parts.forEach((part, place) => {
    const isNumber = /^\d+$/.test(part);
    const isLast = place === parts.length - 1;
    if (isNumber && words.length && (isLast || !/\d/.test(words[words.length - 1]))) words[words.length - 1] += `_${held}${part}`;
    else if (isNumber && !isLast) { held += `${part}_`; return; }
    else words.push(held + part);
    held = '';
  });
  return words;
}

// Group nodes, which are sorted by `order`; `makeGroup(key, label, nodes)` creates the node of a group. A
// word with a number names a block of layers anywhere; other words group neighbours only.
function gatherBlocks(nodes, makeGroup) {
  const gather = (items, depth) => {
    const buckets = [];
    const byWord = new Map();
    for (const item of items) {
      const word = item.words.length - depth > 1 ? item.words[depth] : null;
      const last = buckets[buckets.length - 1];
      let bucket = word === null ? null : /\d/.test(word) ? byWord.get(word) : last && last.word === word ? last : null;
      if (!bucket) {
        bucket = { word, items: [] };
        buckets.push(bucket);
        if (word !== null) byWord.set(word, bucket);
      }
      bucket.items.push(item);
    }
    if (buckets.length === 1 && buckets[0].items.length > 1) return gather(items, depth + 1);
    const made = buckets.map(({ word, items: members }) => {
      const [{ node, words }] = members;
      if (members.length > 1) return makeGroup(words.slice(0, depth + 1).join('_'), word, gather(members, depth + 1));
      node.label = words.slice(depth).join('_'); // the block's name is on the box above
      return node;
    });
    // The largest layer gives the place of a block: random tensors of dropout are often made first.
    const inOrder = (a, b) => a.order - b.order;
    return gatherRuns(gatherStems(made.sort(inOrder), makeGroup).sort(inOrder), makeGroup);
  };
  const items = nodes.map((node) => ({ node, words: nameWords(node.key) }));
  return nodes.length > 1 ? gather(items, 0) : nodes;
}

// block2a, block2b and block2c are parts of block2.
function gatherStems(nodes, makeGroup) {
  const stemOf = (node) => (/^(.*\d)[a-z]$/.exec(node.label) || [])[1];
  const members = new Map();
  for (const node of nodes) if (stemOf(node)) members.set(stemOf(node), [...(members.get(stemOf(node)) || []), node]);
  const groups = new Map([...members].filter(([, found]) => found.length > 1 && found.length < nodes.length));
  const seen = new Set();
  return nodes.flatMap((node) => {
    const stem = stemOf(node);
    if (!groups.has(stem)) return [node];
    if (seen.has(stem)) return [];
    seen.add(stem);
    return [makeGroup(node.key.slice(0, node.key.length - node.label.length) + stem, stem, groups.get(stem))];
  });
}

// Runs of neighbours without a block, such as conv2d_17, named by the first and the last.
function gatherRuns(nodes, makeGroup) {
  if (nodes.length <= MOST_SIBLINGS) return nodes;
  const length = Math.ceil(Math.sqrt(nodes.length));
  const runs = [];
  for (let from = 0; from < nodes.length; from += length) {
    const run = nodes.slice(from, from + length);
    const name = run.length > 1 ? `${run[0].label} … ${run[run.length - 1].label}` : '';
    runs.push(run.length > 1 ? makeGroup(name, name, run) : run[0]);
  }
  return runs;
}

// The place of each layer in the model: the birth of its largest activation; a layer without activations
// follows the layer that was built before it.
function layerOrder(recording) {
  const { category, layer, requested } = recording.columns;
  const activation = recording.categories.indexOf('activation');
  const built = new Map();
  const largest = new Map();
  for (let b = 0; b < recording.buffers; b += 1) {
    if (!built.has(layer[b])) built.set(layer[b], built.size);
    if (category[b] !== activation) continue;
    const known = largest.get(layer[b]);
    if (known === undefined || requested[b] > requested[known]) largest.set(layer[b], b);
  }
  let before = -1;
  const places = [...built].map(([code, place]) => {
    const made = largest.get(code);
    if (made !== undefined) before = made;
    return { code, place, at: made ?? before + 0.5 };
  });
  places.sort((a, b) => a.at - b.at || a.place - b.place);
  return new Map(places.map(({ code }, place) => [code, place]));
}
