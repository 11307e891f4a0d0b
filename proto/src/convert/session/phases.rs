//! What the start of a run's ranks was spent on.

use std::time::Duration;

use muster_core::{
    run::{Import, Imports, NcclPart, NcclTimes, PhasesReport},
    time::Timestamp,
};

use super::bounds::{NAME_MAX, SENTENCE_MAX, age, at, count, text};
use crate::{convert::Malformed, v1};

/// Packages that a node names. The runner keeps 8.
const IMPORTS_MAX: usize = 16;
/// Parts of NCCL's initialization. The runner keeps 16.
const PARTS_MAX: usize = 32;

pub(super) fn to_wire(phases: &PhasesReport, now: Timestamp) -> Option<v1::Phases> {
    (!phases.is_empty()).then(|| v1::Phases {
        script_age_us: age(phases.script_at, now),
        gpu_age_us: age(phases.gpu_at, now),
        communicator_age_us: age(phases.communicator_at, now),
        imports: phases.imports.as_ref().map(imports_to_wire),
        nccl: phases.nccl.as_ref().map(|nccl| v1::NcclTimes {
            us: us(nccl.time),
            parts: nccl.parts.iter().map(part_to_wire).collect(),
        }),
    })
}

pub(in crate::convert) fn imports_to_wire(imports: &Imports) -> v1::Imports {
    v1::Imports {
        us: us(imports.time),
        by: imports.by.iter().map(import_to_wire).collect(),
    }
}

pub(in crate::convert) fn import_to_wire(import: &Import) -> v1::Import {
    v1::Import {
        name: import.name.clone(),
        us: us(import.time),
        why: import.why.clone(),
    }
}

pub(in crate::convert) fn part_to_wire(part: &NcclPart) -> v1::NcclPart {
    v1::NcclPart {
        name: part.name.clone(),
        us: us(part.time),
    }
}

pub(super) fn from_wire(
    field: &str,
    wire: v1::Phases,
    now: Timestamp,
) -> Result<PhasesReport, Malformed> {
    Ok(PhasesReport {
        script_at: at(wire.script_age_us, now),
        gpu_at: at(wire.gpu_age_us, now),
        communicator_at: at(wire.communicator_age_us, now),
        imports: wire
            .imports
            .map(|imports| imports_from_wire(&format!("{field}.imports"), imports))
            .transpose()?,
        nccl: wire
            .nccl
            .map(|nccl| nccl_from_wire(&format!("{field}.nccl"), nccl))
            .transpose()?,
    })
}

fn imports_from_wire(field: &str, wire: v1::Imports) -> Result<Imports, Malformed> {
    count(&format!("{field}.by"), wire.by.len(), IMPORTS_MAX)?;
    let read = |(i, import): (usize, v1::Import)| {
        Ok(Import {
            name: text(&format!("{field}.by[{i}].name"), import.name, NAME_MAX)?,
            time: Duration::from_micros(import.us),
            why: text(&format!("{field}.by[{i}].why"), import.why, SENTENCE_MAX)?,
        })
    };
    Ok(Imports {
        time: Duration::from_micros(wire.us),
        by: wire
            .by
            .into_iter()
            .enumerate()
            .map(read)
            .collect::<Result<_, _>>()?,
    })
}

fn nccl_from_wire(field: &str, wire: v1::NcclTimes) -> Result<NcclTimes, Malformed> {
    count(&format!("{field}.parts"), wire.parts.len(), PARTS_MAX)?;
    let read = |(i, part): (usize, v1::NcclPart)| {
        Ok(NcclPart {
            name: text(&format!("{field}.parts[{i}].name"), part.name, NAME_MAX)?,
            time: Duration::from_micros(part.us),
        })
    };
    Ok(NcclTimes {
        time: Duration::from_micros(wire.us),
        parts: wire
            .parts
            .into_iter()
            .enumerate()
            .map(read)
            .collect::<Result<_, _>>()?,
    })
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
