// The page's script is one text made of many files, whose functions know each other: what is not defined
// anywhere is found by the type check.
import js from '@eslint/js';

export default [
  {
    ...js.configs.recommended,
    files: ['analyzer/**/*.js'],
    languageOptions: { ecmaVersion: 2022, sourceType: 'script' },
    rules: {
      ...js.configs.recommended.rules,
      'no-undef': 'off',
      'no-unused-vars': ['error', { vars: 'local', args: 'after-used', caughtErrors: 'none' }],
      eqeqeq: 'error',
      'no-var': 'error',
      'prefer-const': 'error',
    },
  },
];
