//! `muster version`

use clap::Args;
use serde::Serialize;

use crate::{args::Format, context::Context, fail::Failure, output};

/// Print the version of this program.
///
/// The commit it was built from stands in brackets. The version of each node's agent is in `muster
/// nodes`.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES:
  muster version
  muster version -o json")]
pub(crate) struct Version {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client_version: &'static str,
    api_version: &'static str,
}

pub(crate) async fn version(cx: &Context, _: Version) -> Result<(), Failure> {
    let versions = Versions {
        client_version: crate::VERSION,
        api_version: muster_core::spec::API_VERSION,
    };
    match cx.format() {
        Format::Json => cx.print(&output::json(&versions)),
        Format::Yaml => cx.print(&output::yaml(&versions)),
        _ => cx.print(&format!("muster {}\n", crate::VERSION)),
    }
}
