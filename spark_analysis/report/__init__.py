"""report: one page that holds all it needs: `page` made of `sections`, `charts`, `sentences`."""
