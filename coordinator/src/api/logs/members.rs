//! The member of a generation that a client names, as `worker-1`.

use muster_core::{
    fleet::job::{GenerationRecord, JobRecord},
    id::NodeName,
};
use tonic::Status;

use crate::api::status;

/// Members that an error names. More are counted.
const NAMED_MAX: usize = 16;

/// The number of that member in this generation, and its node. In what is asked for, the number may be
/// left out if the role has one member only.
pub(super) fn holder<'g>(
    record: &JobRecord,
    generation: &'g GenerationRecord,
    asked: &str,
) -> Result<(u32, &'g NodeName), Status> {
    let name = |number| record.spec.member(&generation.layout, number);
    let member = |number| {
        let holder = generation.members.holder(number)?;
        Some((name(number)?, (number, &holder.node)))
    };
    let members: Vec<(String, (u32, &NodeName))> =
        (0..generation.size()).filter_map(member).collect();
    let of_role = |name: &str| name.rsplit_once('-').is_some_and(|(role, _)| role == asked);
    let exact = members.iter().find(|(name, _)| name == asked);
    let mut same_role = members.iter().filter(|(name, _)| of_role(name));
    let only = same_role.next().filter(|_| same_role.next().is_none());
    if let Some((_, found)) = exact.or(only) {
        return Ok(*found);
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
