"""The record of a run: append-only events, candidates by hash, and the fold that reads them."""
