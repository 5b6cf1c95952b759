"""Every error that bitstrata raises on purpose: one class per defect; messages name what is wrong and what to do."""


class BitstrataError(Exception):
    """The base of all errors below; catching it catches everything that bitstrata refuses."""


class MissingExtra(BitstrataError, ImportError):
    """A part of bitstrata was used whose optional dependencies are not installed."""


class BadWidths(BitstrataError, ValueError):
    """Widths that are not two to eight bits each, in increasing order."""


class UnknownWidth(BitstrataError, ValueError):
    """A width was asked for that this network does not hold."""


class BadCodes(BitstrataError, ValueError):
    """Codes or planes outside the range of their width, or of the wrong shape or type."""


class NothingToStratify(BitstrataError, ValueError):
    """A model in which no layer is left to quantise."""


class CannotStratify(BitstrataError, ValueError):
    """A module that computes with weights in a way that has no stratified form; the message names it."""


class LayerBypassed(BitstrataError, RuntimeError):
    """A stratified layer was not called by the model, or was called outside any width."""


class NotCalibrated(BitstrataError, RuntimeError):
    """A network was evaluated before its activation steps were set from data."""


class NotFinite(BitstrataError, FloatingPointError):
    """A NaN or infinity, with the layer or batch where it was first seen."""


class BadOption(BitstrataError, ValueError):
    """An argument that is none of the choices there are."""


class BadRecipe(BitstrataError, ValueError):
    """A recipe or configuration file with an unknown field or an impossible value."""


class BadData(BitstrataError, ValueError):
    """A data set that is missing, damaged, or not laid out as expected."""


class UnknownNet(BitstrataError, ValueError):
    """A network name that no installed collection knows."""


class CheckpointDamaged(BitstrataError, OSError):
    """A checkpoint that is truncated, altered, or not a checkpoint."""


class CheckpointMismatch(BitstrataError, ValueError):
    """A sound checkpoint of another model, recipe, or set of widths."""


class CannotCapture(BitstrataError, ValueError):
    """A network that computes something outside the closed list of ops; the message names the module and the op."""


class BadInput(BitstrataError, ValueError):
    """An input of the wrong type or shape, or one that a network cannot take."""


class UnknownView(BitstrataError, ValueError):
    """A view was asked for that this artifact does not hold."""


class BadGraph(BitstrataError, ValueError):
    """The base of what can be wrong with a graph."""


class BadName(BadGraph):
    """A name with characters that names do not have, or too long."""


class DuplicateName(BadGraph):
    """Two things of one name."""


class UnknownOp(BadGraph):
    """An op outside the closed list."""


class UndefinedValue(BadGraph):
    """A node or output that refers to a value or weight which is nowhere defined."""


class GraphCycle(BadGraph):
    """A node that uses its own result, or one that is computed later."""


class WrongInputCount(BadGraph):
    """A node with more or fewer inputs than its op takes."""


class ZeroSize(BadGraph):
    """Zero or negative channels, groups, kernel, stride, dilation or size."""


class BadShape(BadGraph):
    """Shapes that do not fit an op or each other."""


class TooLarge(BadGraph):
    """More nodes, elements or accumulated magnitude than the limits allow."""


class BadTable(BadGraph):
    """The tables of a view do not fit the graph, or hold numbers that no network has."""


class BadStep(BadTable):
    """An activation step that is not a positive finite number."""
