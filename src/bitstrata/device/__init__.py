"""What a device holds: fetch, resume, verify, switch, prune; `load`."""

from bitstrata.device.load import load as load
