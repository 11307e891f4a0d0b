//! Jobs, nodes, events and receipts, as users see them.
