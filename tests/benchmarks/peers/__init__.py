"""FedRay side by side with other simulators of federated learning: the same work, in turn, on one machine."""
