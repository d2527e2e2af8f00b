"""What is measured: average precision, class-incremental metrics."""
