"""Li et al. (2020): GPRNTensor."""
