"""How figures are drawn: styles, layout, sheets, and the record that joins a table, a figure and its text."""
