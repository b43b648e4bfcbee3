import pytest
import torch

# Helpers whose asserts tell as much as a test's. A file imports the fixtures it needs from them, and those
# that these ask for: `from short_runs import whole as whole`.
pytest.register_assert_rewrite("bad_input_cases", "cli_calls", "short_runs", "viewer_server")
torch.set_num_threads(1)
