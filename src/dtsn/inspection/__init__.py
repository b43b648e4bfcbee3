"""Look into a search: as one document, as text, as a figure."""

from dtsn.inspection.describe import describe_procgen, describe_search, picture, with_search
from dtsn.inspection.document import (
    SearchDocument,
    check_search,
    parse_search,
    read_search,
    to_json,
    write_search,
)
from dtsn.inspection.game24 import describe_game24, watch_game24
from dtsn.inspection.navigation import (
    describe_hall,
    describe_navigation,
    describe_observation,
    search_again,
    watch_navigation,
)

__all__ = [
    "SearchDocument",
    "check_search",
    "describe_game24",
    "describe_hall",
    "describe_navigation",
    "describe_observation",
    "describe_procgen",
    "describe_search",
    "parse_search",
    "picture",
    "read_search",
    "search_again",
    "to_json",
    "watch_game24",
    "watch_navigation",
    "with_search",
    "write_search",
]
