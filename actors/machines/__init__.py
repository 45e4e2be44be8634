"""The machines of a run: what a cluster has, what its autoscaler could start, and where actors find room."""
