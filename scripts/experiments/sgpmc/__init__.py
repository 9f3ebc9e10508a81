"""Hensman et al. (2015): sampling, SGPMCFreeForm."""
