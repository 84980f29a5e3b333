"""The data sets: downloads, archives, readers, generators, and the cache of token arrays."""
