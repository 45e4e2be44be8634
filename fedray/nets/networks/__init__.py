"""The networks: one file each; the file name is the name on the command line (see docs/add-a-dataset.md)."""
