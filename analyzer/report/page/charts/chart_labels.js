// Texts next to the marks of a chart, each at the nearest free place.

const LABEL_HEIGHT = 13;

function createLabels(context, { left, right, top, bottom }) {
  const taken = [];
  const boxOf = (text, x, y, align) => {
    const width = context.measureText(text).width;
    const start = Math.max(left, Math.min(right - width, align === 'right' ? x - width : x));
    return { text, left: start, right: start + width, top: y - LABEL_HEIGHT / 2, bottom: y + LABEL_HEIGHT / 2 };
  };
  const isFree = (box) => box.top >= top && box.bottom <= bottom
    && taken.every((other) => box.left >= other.right + 3 || box.right <= other.left - 3 || box.top >= other.bottom || box.bottom <= other.top);

  // Places are [x, y, alignment], the best first; rows above and below are tried too.
  function find(text, places) {
    for (let row = 0; row * LABEL_HEIGHT < bottom - top; row += 1) {
      for (const [x, y, align] of places) {
        for (const side of row ? [row, -row] : [0]) {
          const box = boxOf(text, x, y + side * LABEL_HEIGHT, align);
          if (isFree(box)) return box;
        }
      }
    }
    return null;
  }

  return {
    taken,
    // Reserve the place of a text that is drawn elsewhere.
    reserve(text, x, y) { taken.push(boxOf(text, x, y, 'left')); },
    // Write a text with a halo; skip it if no place is free.
    write(text, places, colour) {
      const box = find(text, places);
      if (!box) return;
      taken.push(box);
      context.textAlign = 'left';
      context.lineWidth = 3;
      context.lineJoin = 'round';
      context.strokeStyle = colours.page;
      const y = (box.top + box.bottom) / 2;
      context.strokeText(text, box.left, y);
      context.fillStyle = colour;
      context.fillText(text, box.left, y);
    },
  };
}
