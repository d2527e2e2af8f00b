"""Models as files for other programs: one file per format."""
