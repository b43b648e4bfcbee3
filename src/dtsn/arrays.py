"""Names for the arrays that the modules pass around."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
