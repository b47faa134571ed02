// Show the title of the chunk under the pointer.
(() => {
  'use strict';
  for (const figure of document.querySelectorAll('.pool')) {
    const said = figure.querySelector('.pointed');
    const say = (event) => {
      const title = event.target.closest && event.target.closest('rect') && event.target.querySelector('title');
      said.textContent = title ? title.textContent : '';
    };
    figure.querySelector('.pool-map').addEventListener('pointermove', say);
    figure.querySelector('.pool-map').addEventListener('pointerdown', say);
  }
})();
