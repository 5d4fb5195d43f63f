"""How figures are drawn: styles, layout, captions, and the record that joins a table, a figure and its text."""
