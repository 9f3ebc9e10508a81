"""Vecchia priors: each value depends on its nearest neighbours among those before it."""
