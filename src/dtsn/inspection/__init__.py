"""Look into a search: as one document, as text, as a figure."""

from dtsn.inspection.document import describe_navigation, describe_search, read_search, write_search

__all__ = ["describe_navigation", "describe_search", "read_search", "write_search"]
