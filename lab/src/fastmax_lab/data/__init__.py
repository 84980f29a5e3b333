"""Where the data comes from: downloads, archives, readers, generators, and the cache of token arrays."""
