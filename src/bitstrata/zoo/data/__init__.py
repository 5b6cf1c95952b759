"""Data sets of the zoo: `load_data("cifar10:DIR")` gives batches that are the same for any number of ranks."""

from bitstrata.zoo.data.array_split import ArraySplit, Augmentation, CropAndFlip
from bitstrata.zoo.data.description import Data, Normalisation, Split
from bitstrata.zoo.data.image_folder import ImageFolderSplit
from bitstrata.zoo.data.load import known_data, load_data

__all__ = [
    "ArraySplit",
    "Augmentation",
    "CropAndFlip",
    "Data",
    "ImageFolderSplit",
    "Normalisation",
    "Split",
    "known_data",
    "load_data",
]
