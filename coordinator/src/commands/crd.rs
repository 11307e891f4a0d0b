//! `muster-coordinator crd`: the kinds of objects that jobs and records are in a Kubernetes cluster.

use std::io::{self, Write};

use clap::Args;

use crate::store;

/// Print the CustomResourceDefinitions of MusterJob and MusterRecord objects
///
/// A Kubernetes cluster takes such objects once it has these definitions. The manifests bring them
/// along. Deleting one from a cluster deletes all its objects there. MusterRecord objects are what
/// coordinators with --store kubernetes keep.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # To install or upgrade it, pipe this into: kubectl apply --server-side -f -
  muster-coordinator crd")]
pub(super) struct Crd {}

impl Crd {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let records = store::kubernetes::definition_yaml();
        let text = format!("{}---\n{records}", muster_operator::definition_yaml());
        match io::stdout().write_all(text.as_bytes()) {
            // Whoever reads it may stop early, as `head` does.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}
