"""One client selection policy per file; each defines SELECTION, and the file name is its name."""
