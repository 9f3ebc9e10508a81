"""Izmailov (2016): the review's methods."""
