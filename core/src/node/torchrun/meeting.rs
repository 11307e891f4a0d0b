//! Where the ranks of a generation meet.

use super::FORGIVES_BIND;
use crate::run::{Assignment, Endpoint};

/// Where the ranks of a generation meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting<'a> {
    /// At the TCPStore that Muster serves for the generation.
    Served(&'a Endpoint),
    /// At a TCPStore of torchrun's own: see [`alone`].
    Own,
}

/// Whether torchrun must bring a TCPStore of its own. Before [`FORGIVES_BIND`] its node rank 0
/// cannot share a host with ours, and a world of one node has no other host. No other node has to
/// find that store, so Muster only loses the knowledge of which ranks have joined.
pub fn alone(assignment: &Assignment, torch: (u32, u32)) -> bool {
    assignment.framework.is_torch() && assignment.node_count == 1 && torch < FORGIVES_BIND
}
