"""Images: where they come from, how they become tensors, how they are fed."""
