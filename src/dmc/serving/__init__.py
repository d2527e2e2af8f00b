"""A page and a JSON endpoint on which models can be tried, side by side."""
