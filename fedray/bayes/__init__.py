"""The mathematics of posteriors: Gaussians, particles, sites, priors and divergences."""
