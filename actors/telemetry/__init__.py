"""What is measured of a run while it is played: its own progress, and the machines that it uses."""
