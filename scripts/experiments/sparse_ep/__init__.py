"""Hernández-Lobato & Hernández-Lobato (2016): SparseEP."""
