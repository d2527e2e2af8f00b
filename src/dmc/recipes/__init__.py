"""Settings as data: what a recipe runs, and how long it trains in the profiles `paper`, `night`, `lite`, `smoke`."""
