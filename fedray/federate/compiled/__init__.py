"""Steps as machine code: compiled once, kept in a cache, loaded by every process that hosts clients."""
