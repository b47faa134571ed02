// All findings with their evidence, in the order of the report.

function renderFindings(container, findings, state) {
  if (findings.length === 0) container.append(element('p', { class: 'empty', text: 'There are no findings.' }));
  const words = element('input', { type: 'search', class: 'search', placeholder: 'Search', 'aria-label': 'Search findings', oninput: () => { filter(words.value); state.touch('choices'); } });
  const severity = selectElement('severity', [['', 'Any severity'], ...[...new Set(findings.map((finding) => finding.severity))].map((name) => [name, name])], '', () => { filter(words.value); state.touch('choices'); });
  const cards = findings.map(findingCard);
  container.append(element('div', { class: 'controls' }, words, severity), ...cards);

  function filter(text) {
    const sought = text.toLowerCase();
    cards.forEach((card, place) => {
      card.hidden = !card.textContent.replaceAll('\u00a0', ' ').toLowerCase().includes(sought) || (severity.value !== '' && findings[place].severity !== severity.value);
    });
  }
  return {
    update() {}, focusSearch: () => words.focus(),
    choices: () => ({ words: words.value, sort: '', filters: { severity: severity.value } }),
    /** @param {{ words?: string, filters?: { severity?: string } }} choices */
    choose({ words: text = '', filters = {} }) {
      words.value = text;
      severity.value = filters.severity || '';
      if (severity.selectedIndex < 0) severity.value = '';
      filter(text);
    },
    reset() { this.choose({}); },
  };
}

function findingCard(finding, place) {
  const evidence = finding.evidence || [];
  return element('article', { class: `finding-card severity-${finding.severity}` },
    element('h3', {}, element('span', { class: 'severity', text: finding.severity }), ' ', element('span', { text: unbroken(finding.title) })),
    finding.saves_bytes ? element('p', { class: 'saves' }, 'saves up to ', sizeElement(finding.saves_bytes, `findings.${place}.saves_bytes`), finding.saves_kind === 'limit' ? ' of the memory limit' : ` ${finding.saves_kind || 'requested'}`) : null,
    element('p', { class: 'text', text: unbroken(finding.detail) }),
    evidence.length ? element('details', { open: evidence.length <= 5 }, element('summary', { text: `Evidence: ${formatCount(evidence.length)} ${evidence.length === 1 ? 'row' : 'rows'}` }), evidenceTable(finding, evidence)) : null);
}

function evidenceTable(finding, evidence) {
  const keys = [...new Set(evidence.flatMap((row) => Object.keys(row)))];
  const isNumber = (key) => evidence.every((row) => row[key] === null || row[key] === undefined || typeof row[key] === 'number');
  const isSize = (key) => key.endsWith('_bytes') && isNumber(key);
  const kindOf = (key) => (isSize(key) ? 'size' : isNumber(key) ? 'count' : key === 'shape' || key === 'dtype' ? 'short' : 'text');
  const table = createTable({
    name: `Evidence of ${finding.id}`, rows: () => evidence,
    initialSort: { key: keys.find(isSize) || keys[0], descending: true },
    columns: keys.map((key) => ({
      key, label: key.replace(/_bytes$/, '').replaceAll('_', ' '), csv: key, grow: key === 'name',
      kind: kindOf(key),
      value: (row) => (row[key] !== null && typeof row[key] === 'object' ? JSON.stringify(row[key]) : row[key]),
    })),
  });
  table.update();
  return table.root;
}
