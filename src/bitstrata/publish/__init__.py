"""Publishing: push an artifact to a folder or store, sign it, describe it, serve it."""

from bitstrata.publish.card import Facts as Facts
from bitstrata.publish.card import read_facts as read_facts
from bitstrata.publish.destinations import Destination as Destination
from bitstrata.publish.destinations import FolderDestination as FolderDestination
from bitstrata.publish.destinations import open_destination as open_destination
from bitstrata.publish.keys import SigningKey as SigningKey
from bitstrata.publish.keys import generate as generate
from bitstrata.publish.keys import load_key as load_key
from bitstrata.publish.push import Pushed as Pushed
from bitstrata.publish.push import push as push
from bitstrata.publish.serve import serving as serving
