"""Grey images by Gaussian processes on scattering features."""
