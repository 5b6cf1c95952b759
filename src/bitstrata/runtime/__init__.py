"""Runs a view: reference.py is the readable truth and the fallback, native.py the fast one."""

from bitstrata.runtime.model import Model as Model
from bitstrata.runtime.model import load as load
from bitstrata.runtime.reference import ReferenceSession as ReferenceSession
