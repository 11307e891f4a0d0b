//! The start of the ranks in a receipt, divided into what it was spent on.

use muster_proto::v1;
use serde::Serialize;

use super::{ms, some};

/// The start of the ranks. What was not seen is left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StartPhases {
    #[serde(skip_serializing_if = "Option::is_none")]
    fork_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imports_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    join_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nccl_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_step_ms: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    imports: Vec<Import>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nccl: Vec<NcclPart>,
}

#[derive(Debug, Serialize)]
pub(super) struct Import {
    name: String,
    ms: Option<f64>,
    /// Why it was not imported ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl From<v1::Import> for Import {
    fn from(import: v1::Import) -> Self {
        Import {
            name: import.name,
            ms: ms(Some(import.us)),
            why: some(import.why),
        }
    }
}

#[derive(Debug, Serialize)]
struct NcclPart {
    name: String,
    ms: Option<f64>,
}

impl StartPhases {
    /// `None`: nothing was seen.
    pub(super) fn of(start: v1::StartPhases) -> Option<Self> {
        if start == v1::StartPhases::default() {
            return None;
        }
        let part = |part: v1::NcclPart| NcclPart {
            name: part.name,
            ms: ms(Some(part.us)),
        };
        Some(Self {
            fork_ms: ms(start.fork_us),
            imports_ms: ms(start.imports_us),
            gpu_ms: ms(start.gpu_us),
            join_ms: ms(start.join_us),
            model_ms: ms(start.model_us),
            nccl_ms: ms(start.nccl_us),
            first_step_ms: ms(start.first_step_us),
            imports: start.imports.into_iter().map(Import::from).collect(),
            nccl: start.nccl.into_iter().map(part).collect(),
        })
    }
}
