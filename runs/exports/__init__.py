"""Runs in the formats of others: chat messages for training, Inspect logs."""
