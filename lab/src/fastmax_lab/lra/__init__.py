"""The Long Range Arena: five tasks, one encoder, every attention."""
