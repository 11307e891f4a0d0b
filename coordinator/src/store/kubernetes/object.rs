//! The form of a record in an API server: an object of the kind `MusterRecord`.
//!
//! The record is JSON, compressed. `kubectl get mrec NAME -o jsonpath='{.spec.data}' | base64 -d | gunzip`
//! shows it. If it is larger than an object may be, it has parts (`parts`).

use std::io::{self, Read, Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use muster_core::{
    fleet::commit::{RecordKey, Version},
    id::Term,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub(crate) const API_VERSION: &str = "muster.dev/v1alpha1";
pub(crate) const KIND: &str = "MusterRecord";
pub(crate) const PLURAL: &str = "musterrecords";

/// The longest name of an object, in characters.
const NAME_MAX: usize = 253;

/// The most bytes of a record's JSON, after decompression. No record comes near this: the largest job
/// has some 20 MiB.
const DATA_MAX: u64 = 256 << 20;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum About {
    /// The term, and the format of all records.
    Coordinator,
    Job,
    Node,
    /// Epochs of all nodes, and the versions of their records.
    Sessions,
    Tombstone,
    Events,
    /// What is left of jobs that are over, many in one object.
    History,
    /// What waits to be sent to people.
    Outbox,
    Report,
    /// A piece of the data of another object.
    Part,
    /// A kind that only a later version knows. It is left alone.
    #[serde(other)]
    Later,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Object {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: Meta,
    pub(super) spec: Spec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) resource_version: Option<String>,
    #[serde(default, skip_serializing)]
    pub(super) creation_timestamp: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spec {
    pub(super) about: About,
    /// The uid of a job, the name of a node, or the number of the first event or history record.
    pub(super) of: String,
    /// `TERM.WRITE`. `None` if the record is stored without a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    pub(super) data: String,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("its data is not base64")]
    Base64(#[from] base64::DecodeError),
    #[error("its data is not compressed as it should be")]
    Compressed(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{0:?} is not a version")]
    Version(String),
    #[error(
        "its part {0} is not there, so somebody has deleted objects. Restore all of them from one backup"
    )]
    Part(String),
}

impl Spec {
    pub(super) fn of(about: About, of: impl Into<String>, record: &impl Serialize) -> Self {
        Self {
            about,
            of: of.into(),
            version: None,
            data: packed(record),
        }
    }

    pub(super) fn at(mut self, version: Version) -> Self {
        self.version = Some(version.to_string());
        self
    }

    pub(super) fn name(&self) -> String {
        name(self.about, &self.of)
    }

    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Unreadable> {
        unpacked(&self.data)
    }

    pub(super) fn read_version(&self) -> Result<Version, Unreadable> {
        let text = self.version.as_deref().unwrap_or_default();
        let parse = || {
            let (term, write) = text.split_once('.')?;
            Some(Version {
                term: Term(term.parse().ok()?),
                write: write.parse().ok()?,
            })
        };
        parse().ok_or_else(|| Unreadable::Version(text.to_owned()))
    }

    /// As an object, to be made or to take the place of the one with this version.
    pub(super) fn object(&self, resource_version: Option<&str>) -> Object {
        Object {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Meta {
                name: self.name(),
                resource_version: resource_version.map(str::to_owned),
                creation_timestamp: None,
            },
            spec: self.clone(),
        }
    }
}

/// The CustomResourceDefinition of records, as a file.
pub fn yaml() -> String {
    serde_saphyr::to_string(&definition()).expect("JSON has a YAML form")
}

fn definition() -> Value {
    let (group, version) = API_VERSION.split_once('/').expect("it has a group");
    let text = |most: u32| json!({ "type": "string", "maxLength": most });
    let spec = json!({
        "type": "object",
        "required": ["about", "of", "data"],
        "properties": { "about": text(32), "of": text(1_024), "version": text(64), "data": { "type": "string" } },
    });
    let column =
        |name: &str, path: &str| json!({ "name": name, "type": "string", "jsonPath": path });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{PLURAL}.{group}"),
            "labels": { "app.kubernetes.io/part-of": "muster" },
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": format!("{KIND}List"),
                "plural": PLURAL,
                "singular": "musterrecord",
                "shortNames": ["mrec"],
            },
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "additionalPrinterColumns": [
                    column("About", ".spec.about"),
                    column("Of", ".spec.of"),
                    column("Version", ".spec.version"),
                ],
                "schema": { "openAPIV3Schema": {
                    "description": "A record of the coordinators, written by the one that decides. Do not change it.",
                    "type": "object",
                    "required": ["spec"],
                    "properties": { "spec": spec },
                } },
            }],
        },
    })
}

/// Where the records of a namespace are.
pub(super) fn folder(namespace: &str) -> String {
    format!("/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}")
}

pub(super) fn path(namespace: &str, name: &str) -> String {
    format!("{}/{name}", folder(namespace))
}

/// The name of a record's object. A uid or a node's name is part of it as it is, or as a digest if the
/// name would be too long or no name of an object.
pub(super) fn name(about: About, of: &str) -> String {
    let kind = match about {
        About::Coordinator => return "coordinator".into(),
        About::Sessions => return "sessions".into(),
        About::Outbox => return "outbox".into(),
        About::Job => "job",
        About::Node => "node",
        About::Tombstone => "tombstone",
        About::Events => "events",
        About::History => "history",
        About::Report => "report",
        About::Part => "part",
        About::Later => unreachable!("this build makes none"),
    };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let fits = kind.len() + 1 + of.len() <= NAME_MAX && of.chars().all(plain);
    if fits && of.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        return format!("{kind}-{of}");
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, of.as_bytes());
    let digest: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{kind}-sha256-{digest}")
}

/// The object of a record that has a version. Events have none.
pub(super) fn of_key(key: &RecordKey) -> (About, &str) {
    match key {
        RecordKey::Job(uid) => (About::Job, uid.as_str()),
        RecordKey::Node(name) => (About::Node, name.as_str()),
        RecordKey::Tombstone(uid) => (About::Tombstone, uid.as_str()),
        RecordKey::Outbox => (About::Outbox, ""),
        RecordKey::History(_) | RecordKey::Event(_) => {
            unreachable!("they are stored together, many in one object")
        }
    }
}

pub(super) fn packed(record: &impl Serialize) -> String {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let json =
        serde_json::to_vec(record).expect("records have string keys and no failing serializers");
    let bytes = encoder.write_all(&json).and_then(|()| encoder.finish());
    STANDARD.encode(bytes.expect("a write to memory does not fail"))
}

pub(super) fn unpacked<T: DeserializeOwned>(data: &str) -> Result<T, Unreadable> {
    let bytes = STANDARD.decode(data)?;
    let mut json = Vec::new();
    GzDecoder::new(bytes.as_slice())
        .take(DATA_MAX)
        .read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_can_be_that_of_an_object() {
        assert_eq!(name(About::Node, "gpu-1.rack-2"), "node-gpu-1.rack-2");
        assert_eq!(name(About::Job, "7f3c"), "job-7f3c");
        let long = name(About::Node, &"a".repeat(253));
        assert!(
            long.starts_with("node-sha256-") && long.len() < NAME_MAX,
            "{long}"
        );
        assert_ne!(name(About::Job, "A"), name(About::Job, "a"));
        assert!(!name(About::Job, "a/b").contains('/'));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let version = Version {
            term: Term(3),
            write: 17,
        };
        let record = vec!["node".repeat(100); 100];
        let spec = Spec::of(About::Job, "a", &record).at(version);
        assert!(spec.data.len() < 1_000, "{}", spec.data.len());
        assert_eq!(spec.read::<Vec<String>>().unwrap(), record);
        assert_eq!(spec.read_version().unwrap(), version);
        let broken = Spec {
            version: Some("3".into()),
            data: "AAAA".into(),
            ..spec
        };
        assert!(broken.read_version().is_err() && broken.read::<Vec<String>>().is_err());
    }
}
