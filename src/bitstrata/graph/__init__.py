"""Networks as a device sees them: a closed list of ops, a graph of them, and the tables of its views."""

from bitstrata.graph.graph import INPUT as INPUT
from bitstrata.graph.graph import Graph as Graph
from bitstrata.graph.graph import check_graph as check_graph
from bitstrata.graph.graph import infer_shapes as infer_shapes
from bitstrata.graph.network import Network as Network
from bitstrata.graph.network import Table as Table
from bitstrata.graph.network import View as View
from bitstrata.graph.network import check_view as check_view
from bitstrata.graph.weights import Weight as Weight
