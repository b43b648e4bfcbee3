"""Break it on purpose, many times: the tests behind docs/reliability.md."""
