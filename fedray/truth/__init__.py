"""How far the posteriors of the methods are from the exact ones, on models whose exact posteriors are known."""
