//! Reads the job files of other systems: a tree with places in, [`JobDocument`](muster_core::spec::JobDocument)s and a verdict for
//! every field out.
//!
//! A file is taken as it is, or refused with the reason and the place: nothing is left out in
//! silence. `tree` owns the syntax. `documents` finds the jobs in a file by group and kind, `kinds`
//! has a file for each kind, `pod` the template that they share, `launch` the command. This crate
//! reads no file and asks no node; whether a job is right in the end is for `JobDocument::check` in
//! core. `status` goes the other way: it shows such a job in its system's words. `adopt` has the kinds
//! whose objects a coordinator may take in a cluster.
#![forbid(unsafe_code)]

pub mod adopt;
mod documents;
mod draft;
mod fields;
mod flags;
mod framework_draft;
mod grace;
mod kinds;
mod launch;
mod lends;
mod mpirun;
pub mod names;
mod options;
mod pod;
mod procs;
mod ranks;
mod roles;
mod run_policy;
mod shell;
mod site;
pub mod spelling;
pub mod status;
#[cfg(test)]
mod tests;
pub mod tree;
mod variables;
mod verdict;
mod words;

pub use documents::{Reading, is_batch_script, is_ours, read, read_batch_script};
pub use draft::{Converted, NameAt, ObjectOnly};
pub use options::Options;
pub use run_policy::MANAGER;
pub use shell::words as split_words;
pub use site::Site;
pub use verdict::{Remark, Verdict};
