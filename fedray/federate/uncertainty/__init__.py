"""What one can do with a client's uncertainty: refuse, abstain, recalibrate, and name a set instead of one class."""
