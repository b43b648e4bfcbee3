"""Offline data sets: one checksummed HDF5 file, read in batches; Minari and gen_dgrl in and out."""

from dtsn.data.dataset import Dataset, DatasetError, DatasetWriter, Episode

__all__ = ["Dataset", "DatasetError", "DatasetWriter", "Episode"]
