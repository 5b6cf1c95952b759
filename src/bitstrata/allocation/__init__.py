"""Mixed precision: a width for each layer, chosen exactly within a budget; a network of it; and its view."""

from bitstrata.allocation.allocate import Allocation as Allocation
from bitstrata.allocation.allocate import Allocator as Allocator
from bitstrata.allocation.allocate import allocate as allocate
from bitstrata.allocation.knapsack import least_error as least_error
from bitstrata.allocation.mixed import mixed_network as mixed_network
from bitstrata.allocation.views import add_mixed_view as add_mixed_view
