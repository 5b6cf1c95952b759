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


class BadStudy(BitstrataError, ValueError):
    """A study file with an unknown field or method, or results that are not records of runs."""


class BadBudget(BitstrataError, ValueError):
    """A bit budget that no choice of widths can keep."""


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


class BadInputDescription(BitstrataError, ValueError):
    """A description of an input with an impossible shape, mean, std, crop or label."""


class BadArtifact(BitstrataError, ValueError):
    """The base of what can be wrong with the files of an artifact."""


class NotAnArtifact(BadArtifact):
    """A path with no manifest in it, or something else that is not to be overwritten."""


class UnknownFormat(BadArtifact):
    """A manifest of another format, or of a version that this program does not read."""


class MissingFile(BadArtifact):
    """A file that the manifest names is not there."""


class NotARegularFile(BadArtifact):
    """A link, folder, pipe or device in the place of a file."""


class WrongSize(BadArtifact):
    """A file that is longer or shorter than the manifest says."""


class WrongHash(BadArtifact):
    """A file or segment whose bytes are not those that the manifest was written for."""


class ManifestTooLarge(BadArtifact):
    """A manifest over the limit."""


class BadManifest(BadArtifact):
    """A manifest that is no JSON, or has missing or unknown fields or values of the wrong type."""


class NotCanonical(BadArtifact):
    """A manifest that says the right things in other bytes than the one spelling there is, repeated keys included."""


class BadStrata(BadArtifact):
    """Strata or segments that do not follow from the graph and the widths."""


class BadViewEntry(BadArtifact):
    """A view in the manifest whose file, widths or size do not follow from the graph."""


class OtherNetwork(BadArtifact):
    """A sound artifact, of another network or checkpoint than the one that a view is to be added from."""


class BadHeader(BadArtifact):
    """The header of a tensor file is cut off, no JSON, or not in the one spelling there is."""


class HeaderTooLarge(BadArtifact):
    """The header of a tensor file is said to be over the limit, or longer than the file."""


class DuplicateTensor(BadArtifact):
    """A tensor file with two tensors of one name."""


class BadTensorType(BadArtifact):
    """A tensor of a type that artifacts do not hold."""


class BadTensorSize(BadArtifact):
    """A tensor whose shape and number of bytes disagree."""


class BadOffsets(BadArtifact):
    """Tensors that overlap, leave a hole, reach over the end of the file, or leave bytes behind them."""


class WrongTensors(BadArtifact):
    """A tensor file that holds other tensors than the graph calls for."""


class NonZeroPadding(BadArtifact):
    """Bits behind the last weight of a plane, or bytes behind the last of a tensor, that are not zero."""


class FetchFailed(BitstrataError, OSError):
    """The base of what can go wrong on the way from a source to this device; what was fetched so far is kept."""


class BadSource(FetchFailed, ValueError):
    """A source that is no path and no address that can be fetched from."""


class NotPublished(FetchFailed):
    """The source answered, and what was asked for is not there."""


class AccessDenied(FetchFailed):
    """The source refuses: a token is missing, wrong, or has expired."""


class SourceUnreachable(FetchFailed):
    """No answer, broken connections or server errors, until all tries were used up; or offline mode."""


class Interrupted(FetchFailed):
    """Something on the way that another try may mend. Where all tries fail, it becomes `SourceUnreachable`."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that the source asks to be left alone for."""


class SourceMisbehaves(FetchFailed):
    """Answers against the protocol: wrong ranges or lengths, forbidden redirects, endless or encoded bodies."""


class WrongContent(FetchFailed):
    """All bytes came, and they are not those that were published: their sha256 is another."""


class NotTrusted(BitstrataError):
    """The base of what a device does not accept from a source, whoever sent it."""


class BadRelease(NotTrusted, ValueError):
    """A release, key set or key that is no such thing: damaged, too large, not in its one spelling."""


class Unsigned(NotTrusted):
    """A key is pinned for this model, and the release has no signature."""


class WrongSignature(NotTrusted):
    """No signature of the release was made by a key that is trusted for this model."""


class Rollback(NotTrusted):
    """A release that is older than the one held, or another one of the same version."""


class WrongModel(NotTrusted):
    """A source that publishes another model than the one that is held under this name."""


class StoreProblem(BitstrataError, OSError):
    """The base of what can be wrong with the store of this device."""


class StoreBusy(StoreProblem):
    """Another process is changing the same store, and did not finish in time."""


class StoreDamaged(StoreProblem):
    """A record of the store that is damaged or of another version of the program."""


class NoSpace(StoreProblem):
    """What is to be fetched does not fit the disk."""


class UnknownModel(StoreProblem, ValueError):
    """A model that this device does not hold."""


class NothingFits(BitstrataError, ValueError):
    """No view stays within the limits that were given; the message says how near the smallest comes."""


class BadKey(BitstrataError, ValueError):
    """A private key that cannot be used: not there, of another kind, or its passphrase is missing or wrong."""


class CannotPublish(BitstrataError, ValueError):
    """A destination that already holds something else, or that nothing can be written to."""
