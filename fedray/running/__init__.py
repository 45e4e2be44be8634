"""One run from request to result: its folder, its status, its MLflow run, its figures, and the loaded predictor."""
