"""What MLflow shows of a finished run, and the model that it serves."""
