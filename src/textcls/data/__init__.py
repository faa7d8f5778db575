"""Data sets, from where they come to the batches that the model reads."""
