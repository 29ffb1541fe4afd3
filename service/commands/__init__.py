"""One file per group of commands; each only parses flags, calls the layer below and prints."""
