"""Runs plans on a model: the paged cache, packing, the forward pass, sampling. It decides nothing about requests."""
