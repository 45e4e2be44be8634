"""A federation without Ray: the plan, the clients of one process, the rounds, evaluation and checkpoints."""
