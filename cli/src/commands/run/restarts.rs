//! What a job survives, as the flags say it.

use muster_core::spec::RestartPolicyDocument;

use super::Run;

pub(super) fn policy(args: &Run) -> Option<RestartPolicyDocument> {
    let (max_restarts, max_same_failures) = (args.max_restarts, args.max_same_failures);
    let says = max_restarts.or(max_same_failures).is_some();
    says.then_some(RestartPolicyDocument {
        max_restarts,
        window: None,
        max_same_failures,
    })
}
