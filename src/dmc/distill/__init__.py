"""Double distillation: what the student should answer (Eq. 4) and how far off it is (Eq. 3)."""
