"""What of a federation outlives a round: the clients' states, and checkpoints."""
