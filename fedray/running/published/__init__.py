"""What MLflow shows of a run and of its machines, and the model that it serves."""
