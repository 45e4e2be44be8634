"""Ray, and nothing but Ray: the actors of a federation, their placement, and their recovery."""
