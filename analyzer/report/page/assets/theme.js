// Before the first paint: the theme that was chosen here before, else the system's.
try {
  const chosen = localStorage.getItem('tf-memory-analyzer-theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch (denied) {
  // Storage may be off for pages opened from disk; the system's theme is then what is shown.
}
document.documentElement.classList.add('js');
