//! stub
use crate::{context::Context, fail::Failure};
use clap::Args;
use std::path::{Path, PathBuf};
pub(crate) const DETACH: &str = "__detach";
/// stub
#[derive(Debug, Args)]
pub(crate) struct Local {}
#[derive(Debug, Args)]
pub(crate) struct Detach {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<std::ffi::OsString>,
}
pub(crate) fn endpoint_of(_: &Path) -> Option<String> {
    None
}
pub(crate) fn default_dir() -> PathBuf {
    PathBuf::from("/tmp/muster-x")
}
pub(crate) async fn run(_: &Context, _: Local) -> Result<(), Failure> {
    Ok(())
}
pub(crate) fn detach(_: &Detach) -> Result<(), Failure> {
    Ok(())
}
