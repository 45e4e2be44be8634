"""Faults of every kind, injected into federations whose end must not show it."""
