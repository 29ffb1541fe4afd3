"""HTML files that need no network: one look, one content policy, drawings that follow the reader's colours."""
