"""The loop that asks a model, runs its tool calls, and keeps the best candidate."""
