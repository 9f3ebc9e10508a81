"""The models that can be trained from the shell; the flags of each are in a module of its own."""
