//! What objects ask for and what they should show: plain functions over objects and what the engine has published.
//! Each may be asked again at any time, and names one next step. No rule reads a clock, an object or a file.
//!
//! | file | owns |
//! |---|---|
//! | `dependents` | what a `MusterJob` object owns besides pods: a NetworkPolicy, a PodDisruptionBudget |
//! | `queue` | a job in a queue of Kueue: whether it may have nodes |
//! | `adoption` | an object of another system's kind, and the `MusterJob` object that runs it |
//! | `job_object`, `job_status` | what a `MusterJob` object asks for, and what its status says |
//!
//! Which pods a job lacks is decided in `core::fleet::pod_plan` and `pod_work`.

pub mod adoption;
pub mod dependents;
pub mod job_object;
pub mod job_status;
pub mod queue;
#[cfg(test)]
mod tests;
