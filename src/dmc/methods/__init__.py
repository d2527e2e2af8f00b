"""One file per class-incremental method."""
