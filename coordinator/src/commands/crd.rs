//! `muster-coordinator crd`: the kind of object that jobs are in a Kubernetes cluster.

use std::io::{self, Write};

use clap::Args;

use crate::kubernetes;

/// Print the CustomResourceDefinition of MusterJob objects
///
/// A Kubernetes cluster takes MusterJob objects once it has this definition. The manifests bring it
/// along. Deleting it from a cluster deletes all MusterJob objects there.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  # To install or upgrade it, pipe this into: kubectl apply --server-side -f -
  muster-coordinator crd")]
pub(super) struct Crd {}

impl Crd {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match io::stdout().write_all(kubernetes::definition_yaml().as_bytes()) {
            // Whoever reads it may stop early, as `head` does.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}
