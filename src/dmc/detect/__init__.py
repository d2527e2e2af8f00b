"""One-stage detectors: scenes and their boxes, training, consolidation (section 3.2), average precision."""
