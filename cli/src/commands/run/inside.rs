//! What the ranks run inside of.

use clap::Args;

#[derive(Debug, Default, Args)]
pub(super) struct Inside {
    /// Run the ranks in this container image on every node: docker.io/pytorch/pytorch:2.8.0, or a file by its absolute path,
    /// as /shared/train.sif. The nodes' podman, apptainer or enroot runs it (see docs/images.md)
    #[arg(long, alias = "container-image", value_name = "IMAGE")]
    pub(super) image: Option<String>,
}
