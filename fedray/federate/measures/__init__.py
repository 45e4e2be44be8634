"""What predictions are measured by, as sums that add over examples and clients."""
