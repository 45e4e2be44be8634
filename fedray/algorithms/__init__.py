"""One federated algorithm per file; each defines ALGORITHM, and the file name is its name."""
