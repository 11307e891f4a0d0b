//! One request for each of several names. A refusal of one keeps no other from being asked.

use crate::{context::Context, fail::Failure};

/// Asks for each name, in order. Each failure is printed at once, and the command then fails with one sentence. If
/// only one name was given, the caller prints its failure. Where the coordinator cannot be reached, or whoever reads
/// has gone, no other is asked.
pub(crate) async fn each(
    cx: &Context,
    names: &[String],
    mut ask: impl AsyncFnMut(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut failed = None;
    for name in names {
        match ask(name).await {
            Ok(()) => {}
            Err(failure @ Failure::Request(_)) if names.len() > 1 => {
                cx.warn(format!("error: {name}: {failure}"));
                failed = Some(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    match failed {
        None => Ok(()),
        Some(_) => Err(Failure::request("not all of them: see above")),
    }
}
