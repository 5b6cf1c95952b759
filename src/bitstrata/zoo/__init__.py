"""Networks, data sets and recipes to train and measure with."""
