"""Networks as functions of one flat vector, and the likelihood of their predictions."""
