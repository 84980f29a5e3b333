"""The kernels, one to a file. Importing one imports Triton; nothing here is imported before it is launched.

Words: *rows* are the tokens that a program writes, *columns* the tokens that rows see in the dense form. Capital arguments are
pointers and compile-time constants (`tl.constexpr`), small ones are numbers at run time. D and DV are the channels of a head
and of a value, padded to a power of two; DR and DVR are how many there really are. A state has ROWS rows of DV channels, those of
pairs before those of single channels, and a COLUMN, of which the first SQUARE numbers are of pairs (`states.Shape`).
"""
