"""The whole story, offline, for each kind of model."""
