"""Streams of classes, the runner that feeds methods with them, and runs of the paper's recipes."""
