"""A trained torch model becomes a graph and its views, with normalisation folded; `pack` writes them down."""

from bitstrata.capture.capture import capture as capture
from bitstrata.capture.capture import capture_mixed as capture_mixed
from bitstrata.capture.pack import pack as pack
