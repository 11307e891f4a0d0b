//! Turns values into text. Nothing here reads a clock, a terminal or a file: the output is a
//! function of the arguments.

mod after;
pub(crate) mod audit;
pub(crate) mod check;
mod chosen;
pub(crate) mod describe;
pub(crate) mod document;
pub(crate) mod environment;
pub(crate) mod explain;
mod gpu_use;
pub(crate) mod hardware;
pub(crate) mod history;
pub(crate) mod holders;
mod imports;
pub(crate) mod listing;
pub(crate) mod otlp;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod queues;
mod raised;
mod receivers;
mod restarts;
mod roles;
pub(crate) mod shares;
pub(crate) mod stacks;
mod stall;
pub(crate) mod start;
pub(crate) mod steps;
pub(crate) mod table;
mod time_account;
mod timeline;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod usage;
pub(crate) mod words;

use serde::Serialize;

#[cfg(test)]
mod tests;

/// Several objects in one document, in the form of `kubectl -o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct List<T> {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<T>,
}

impl<T> List<T> {
    pub(crate) fn new(items: Vec<T>) -> Self {
        Self {
            api_version: muster_core::spec::API_VERSION,
            kind: "List",
            items,
        }
    }
}

pub(crate) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).expect("our documents have text keys and finite numbers")
        + "\n"
}

/// In one line, as files of one document per line have it.
pub(crate) fn json_line<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our documents have text keys and finite numbers") + "\n"
}

pub(crate) fn value<T: Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).expect("our documents have text keys")
}

pub(crate) fn yaml<T: Serialize>(value: &T) -> String {
    serde_saphyr::to_string(value).expect("our documents have text keys and finite numbers")
}
