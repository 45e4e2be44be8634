"""FedRay in Python and in notebooks: a run, its rounds and results, and comparisons of runs."""
