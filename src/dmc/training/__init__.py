"""The one training loop, its schedule, and the folder that a run leaves behind."""
