"""One script per side. Each is run by the Python of its own environment and prints what its part has cost."""
