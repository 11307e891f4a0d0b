//! The agent's brain: what one node does with its desired state and with what its runners say. Pure; the agent is its shell.

pub mod torchrun;
