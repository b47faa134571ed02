// Every page: the theme (chosen here before, else the system's), its button and its key.
(() => {
  'use strict';
  const root = document.documentElement;
  const key = 'tf-memory-analyzer-theme';
  try {
    const chosen = localStorage.getItem(key);
    if (chosen === 'light' || chosen === 'dark') root.dataset.theme = chosen;
  } catch (denied) { /* Storage may be off for a page opened from disk: show the system's theme. */ }
  root.classList.add('js');

  const toggle = () => {
    const isDark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = isDark ? 'light' : 'dark';
    try { localStorage.setItem(key, root.dataset.theme); } catch (denied) { /* shown, not stored */ }
    document.dispatchEvent(new Event('themechange'));
  };
  // The title of the shape under the pointer, as text below its drawing.
  const showTitle = (figure, event) => {
    const title = event.target.closest('rect') ? event.target.querySelector('title') : null;
    figure.querySelector('.pointed').textContent = title ? title.textContent : '';
  };
  addEventListener('DOMContentLoaded', () => {
    document.getElementById('theme').addEventListener('click', toggle);
    for (const figure of document.querySelectorAll('.drawing')) {
      for (const name of ['pointermove', 'pointerdown']) figure.addEventListener(name, (event) => showTitle(figure, event));
    }
  });
  addEventListener('keydown', (event) => {
    const isTyping = event.target.closest('input, select, textarea');
    if (event.key === 't' && !event.ctrlKey && !event.metaKey && !event.altKey && !isTyping) toggle();
  });
})();
