"""Data that results are measured on."""
