"""A sweep as text, as CSV and as a page."""
