"""Ray Tune over whole federations: every trial is a federation of its own."""
