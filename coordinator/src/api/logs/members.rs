//! The member of a generation that a client names, as `worker-1`.

use muster_core::{
    fleet::job::{GenerationRecord, JobRecord},
    id::NodeName,
};
use tonic::Status;

use crate::api::status;

/// Members that an error names. More are counted.
const NAMED_MAX: usize = 16;

/// The node on which that member is in this generation. The number may be left out if the role has one
/// member only.
pub(super) fn holder<'g>(
    record: &JobRecord,
    generation: &'g GenerationRecord,
    asked: &str,
) -> Result<&'g NodeName, Status> {
    let name = |rank: usize| record.spec.member(&generation.layout, rank as u32);
    let members = generation.members.iter().enumerate();
    let members: Vec<(String, &NodeName)> = members
        .filter_map(|(rank, member)| Some((name(rank)?, &member.node)))
        .collect();
    let of_role = |name: &str| name.rsplit_once('-').is_some_and(|(role, _)| role == asked);
    let exact = members.iter().find(|(name, _)| name == asked);
    let mut same_role = members.iter().filter(|(name, _)| of_role(name));
    let only = same_role.next().filter(|_| same_role.next().is_none());
    if let Some((_, node)) = exact.or(only) {
        return Ok(node);
    }
    if members.is_empty() {
        return Err(status::invalid(
            "member",
            format!(
                "is {asked}, and the members of job {} have no names: ask for a rank or a node",
                record.name
            ),
        ));
    }
    let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.truncate(NAMED_MAX);
    Err(status::invalid(
        "member",
        format!(
            "is {asked}, generation {} has {}{more}",
            generation.number,
            names.join(", ")
        ),
    ))
}
