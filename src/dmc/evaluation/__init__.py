"""How well a model does on labeled data, and what it says about single images."""
