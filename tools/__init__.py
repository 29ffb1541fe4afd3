"""What a model sees: one file per tool, text in, text out."""
