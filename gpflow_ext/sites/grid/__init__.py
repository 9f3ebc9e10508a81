"""Grid priors: the covariance of a product kernel on a grid is a Kronecker product, one factor to an axis."""
