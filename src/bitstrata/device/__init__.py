"""What a device holds: fetch, resume, verify, switch, prune; `load`."""

from bitstrata.device.loading import load as load
