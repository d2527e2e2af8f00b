"""Streams of classes, runs of methods on them, metrics, and the paper's experiments as recipes."""
