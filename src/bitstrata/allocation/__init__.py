"""Mixed precision: a width for every layer, chosen exactly within a bit budget."""
