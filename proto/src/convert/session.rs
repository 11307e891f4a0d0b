//! The agent session: hello, reports, desired state.
