"""What the run-time does differently on a GPU: its numbers, its memory, its graphs, its copies to the host."""
