"""Hensman et al. (2015), section 4.4: SVGPRobustMax."""
