//! The members that share a node, and what they run.

use std::collections::BTreeMap;

use muster_core::{
    run::{Program, Seated},
    spec::ROLES_MAX,
};

use super::bounds::{NAME_MAX, SENTENCE_MAX, between, count, malformed, required_text, texts};
use crate::{convert::Malformed, v1};

/// Ranks of one node, in all. The bounds here are those of a job (`core::spec::limits`) or higher
/// ones, so that later versions may allow more.
pub(super) const PROCS_MAX: u32 = 256;
pub(super) const ARGS_MAX: usize = 1_024;
/// Linux takes no argument or variable longer than 128 KiB.
pub(super) const ARG_BYTES_MAX: usize = 128 << 10;
pub(super) const ENV_MAX: usize = 1_024;

/// The totals of a generation, and the part that this node has of them.
pub(super) struct Whole {
    pub(super) first: u32,
    pub(super) members: u32,
    pub(super) procs: u32,
    pub(super) world_size: u32,
}

pub(super) fn seated_to_wire(member: &Seated) -> v1::Seated {
    v1::Seated {
        number: member.number,
        program: member.program as u32,
        procs: member.procs,
        first_rank: member.first_rank,
        gpus: member.gpus.clone(),
    }
}

pub(super) fn program_to_wire(program: &Program) -> v1::Program {
    v1::Program {
        command: program.command.clone(),
        args: program.args.clone(),
        env: program.env.clone(),
        env_files: program.env_files.clone(),
        working_dir: program.working_dir.clone(),
    }
}

/// Members whose numbers and ranks fit the generation, and count up.
pub(super) fn members_from_wire(
    field: &str,
    wire: Vec<v1::Seated>,
    programs: usize,
    whole: &Whole,
) -> Result<Vec<Seated>, Malformed> {
    let at = |part: &str| format!("{field}.{part}");
    count(&at("members"), wire.len(), PROCS_MAX as usize)?;
    let mut members: Vec<Seated> = Vec::with_capacity(wire.len());
    for (i, member) in wire.into_iter().enumerate() {
        let at = |part: &str| format!("{field}.members[{i}].{part}");
        let (number, rank) = match members.last() {
            None => (whole.first, 0),
            Some(before) => (before.number + 1, before.first_rank + before.procs),
        };
        let procs = between(&at("procs"), member.procs, 1, whole.procs)?;
        let first_rank = member.first_rank;
        if first_rank < rank || first_rank > whole.world_size - procs {
            return Err(malformed(
                at("first_rank"),
                format!("{first_rank} is no free rank of {}", whole.world_size),
            ));
        }
        if number >= whole.members {
            return Err(malformed(at("number"), "has no number left"));
        }
        members.push(Seated {
            number: between(&at("number"), member.number, number, whole.members - 1)?,
            program: match programs {
                0 => return Err(malformed(at("program"), "is missing")),
                all => between(&at("program"), member.program, 0, all as u32 - 1)? as usize,
            },
            procs,
            first_rank,
            gpus: texts(&at("gpus"), member.gpus, PROCS_MAX as usize, NAME_MAX)?,
        });
    }
    let procs: u32 = members.iter().map(|member| member.procs).sum();
    let first = members
        .first()
        .is_none_or(|member| member.number == whole.first);
    if !members.is_empty() && (!first || procs != whole.procs) {
        return Err(malformed(
            at("members"),
            format!(
                "begin at another member than {} or have {procs} ranks, not {}",
                whole.first, whole.procs
            ),
        ));
    }
    Ok(members)
}

pub(super) fn programs_from_wire(
    field: &str,
    wire: Vec<v1::Program>,
) -> Result<Vec<Program>, Malformed> {
    let field = format!("{field}.programs");
    count(&field, wire.len(), ROLES_MAX)?;
    let program = |(i, program): (usize, v1::Program)| {
        let at = |part: &str| format!("{field}[{i}].{part}");
        check_env(&format!("{field}[{i}]"), &program.env, &program.env_files)?;
        Ok(Program {
            command: texts(&at("command"), program.command, ARGS_MAX, ARG_BYTES_MAX)?,
            args: texts(&at("args"), program.args, ARGS_MAX, ARG_BYTES_MAX)?,
            env: program.env,
            env_files: program.env_files,
            working_dir: program
                .working_dir
                .map(|dir| required_text(&at("working_dir"), dir, SENTENCE_MAX))
                .transpose()?,
        })
    };
    wire.into_iter().enumerate().map(program).collect()
}

/// Variables that the system takes.
pub(super) fn check_env(
    field: &str,
    env: &BTreeMap<String, String>,
    env_files: &BTreeMap<String, String>,
) -> Result<(), Malformed> {
    let at = |part: &str| format!("{field}.{part}");
    count(&at("env"), env.len(), ENV_MAX)?;
    count(&at("env_files"), env_files.len(), ENV_MAX)?;
    for (name, value) in env.iter().chain(env_files) {
        if name.is_empty()
            || name.contains(['=', '\0'])
            || value.contains('\0')
            || name.len() + value.len() > ARG_BYTES_MAX
        {
            return Err(malformed(
                at("env"),
                format!("{name:.64?} is not a variable the system takes"),
            ));
        }
    }
    Ok(())
}
