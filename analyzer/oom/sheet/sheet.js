// The theme's button, and what is under the pointer in words.
(() => {
  'use strict';
  const root = document.documentElement;
  const toggle = () => {
    const isDark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = isDark ? 'light' : 'dark';
    try { localStorage.setItem('tf-memory-analyzer-theme', root.dataset.theme); } catch (denied) { /* shown, not kept */ }
  };
  document.getElementById('theme').addEventListener('click', toggle);
  document.addEventListener('keydown', (event) => {
    if (event.key === 't' && !event.ctrlKey && !event.metaKey && !event.altKey) toggle();
  });
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
