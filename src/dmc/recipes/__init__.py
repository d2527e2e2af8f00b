"""Settings as data: what is run, and how long, in the profiles `paper`, `lite` and `smoke`."""
