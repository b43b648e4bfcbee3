"""Offline data sets: one checksummed HDF5 file, read in batches; Minari and gen_dgrl in and out."""

from dtsn.data.format import DatasetError, Episode, ObservationSpec
from dtsn.data.reader import Dataset
from dtsn.data.writer import DatasetWriter

__all__ = ["Dataset", "DatasetError", "DatasetWriter", "Episode", "ObservationSpec"]
