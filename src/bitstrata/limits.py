"""Every limit, with its unit."""

#: Bits. Width 1 is refused: a sign alone has no zero, and networks that live with that need another architecture
#: (section 6.1 of the paper), so its planes would be of no use to the widths above it.
MIN_WIDTH = 2

#: Bits. A code of a weight or an activation must fit a byte.
MAX_WIDTH = 8

#: Steps never fall below their initial value divided by this, so that no division by them can overflow.
STEP_FLOOR_DIVISOR = 256

#: Integers up to this magnitude are exact in float32, the type in which evaluation accumulates where it can.
FLOAT32_EXACT = 2**24
