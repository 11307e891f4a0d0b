//! The architecture, as tests: see `tests/`.
