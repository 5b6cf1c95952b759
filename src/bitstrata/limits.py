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

#: Kernels accumulate in 32-bit integers; a layer whose worst case could exceed this is refused.
MAX_ACCUMULATOR = 2**31 - 1

#: Characters in the name of a node, weight, view or label.
MAX_NAME = 128

#: Nodes in a graph, and separately weights in it.
MAX_NODES = 8192

#: Inputs of one node, and separately outputs of a graph.
MAX_NODE_INPUTS = 1024

#: Views in an artifact.
MAX_VIEWS = 64

#: Class labels in the description of an input.
MAX_LABELS = 65_536

#: Channels, features, rows or columns: any single dimension.
MAX_DIMENSION = 2**24

#: Elements of one tensor.
MAX_ELEMENTS = 2**31 - 1

#: Kernel size, stride, dilation and padding, along one axis.
MAX_WINDOW = 4096

#: Bytes of a manifest.
MAX_MANIFEST_BYTES = 8 * 2**20

#: Bytes of the header of one tensor file.
MAX_HEADER_BYTES = 4 * 2**20

#: Bytes of one stratum or view.
MAX_FILE_BYTES = 2**36

#: Bytes: planes and float weights start at multiples of this in their file.
SEGMENT_ALIGNMENT = 64

#: Dimensions of one stored tensor.
MAX_TENSOR_DIMENSIONS = 4

#: Tensors in one file: every weight, and the few tables of a view.
MAX_TENSORS = MAX_NODES + 8

#: Bytes of a release (`latest.json`) or of a key set.
MAX_RELEASE_BYTES = 65_536

#: Keys in a key set, and separately signatures of a release.
MAX_KEYS = 16

#: Key sets that a device follows from the one it holds to the newest.
MAX_KEY_ROTATIONS = 256

#: Bytes of one request's headers and address: no source needs more.
MAX_ADDRESS = 8192

#: Redirects that one request follows.
MAX_REDIRECTS = 5

#: Bytes of a list of signed addresses (`*.presigned.json`), and of a file of headers.
MAX_PRESIGNED_BYTES = 4 * 2**20
MAX_HEADERS_FILE_BYTES = 65_536

#: Characters of an ETag that is kept to resume with.
MAX_VALIDATOR = 256
