//! The node's ledger on disk: `DIR/ledger.json`, JSON with its checksum, replaced as a whole and
//! synced before the agent obeys.
//!
//! A file that cannot be read is never replaced by an empty one, because the node would then obey
//! what it has promised to refuse. A person must decide.

use std::{
    io,
    path::{Path, PathBuf},
};

use muster_core::{id::NodeName, node::Ledger};
use serde::{Deserialize, Serialize};

use crate::atomic_file::{self, write_atomic};

pub(crate) const NAME: &str = "ledger.json";
const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error(
        "{}: {what}; restore the file from a backup, or make sure that no worker runs on this node and move the whole state directory \
         away to start anew",
        path.display()
    )]
    Damaged { path: PathBuf, what: String },
    #[error(
        "{}: belongs to node {found}, this agent is {node}; give it its own --state-dir, or --node-name {found}",
        path.display()
    )]
    Foreign {
        path: PathBuf,
        found: NodeName,
        node: NodeName,
    },
    #[error(
        "{}: is missing although runs lie beside it; restore it from a backup, or make sure that no worker runs on this node and move \
         the whole state directory away to start anew",
        path.display()
    )]
    Missing { path: PathBuf },
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct File {
    v: u32,
    ledger: Ledger,
}

/// The ledger of `node`. It is a new one if the node has never obeyed anything.
pub(crate) fn read(dir: &Path, node: &NodeName, runs_exist: bool) -> Result<Ledger, LedgerError> {
    let path = dir.join(NAME);
    let damaged = |what: String| LedgerError::Damaged {
        path: path.clone(),
        what,
    };
    let bytes = match atomic_file::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound && runs_exist => {
            return Err(LedgerError::Missing { path });
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Ledger::new(node.clone())),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(damaged(e.to_string())),
        Err(source) => return Err(LedgerError::Io { path, source }),
    };
    let file: File = muster_runner::record::parse(&bytes).map_err(|(_, what)| damaged(what))?;
    if file.v != VERSION {
        return Err(damaged(format!(
            "has version {}, this agent reads {VERSION}",
            file.v
        )));
    }
    if file.ledger.node != *node {
        return Err(LedgerError::Foreign {
            path,
            found: file.ledger.node,
            node: node.clone(),
        });
    }
    Ok(file.ledger)
}

pub(crate) fn write(dir: &Path, ledger: &Ledger) -> Result<(), LedgerError> {
    let path = dir.join(NAME);
    let json = serde_json::to_vec(&File {
        v: VERSION,
        ledger: ledger.clone(),
    })
    .expect("a ledger has only text keys");
    write_atomic(&path, muster_sealed::seal(json))
        .map_err(|source| LedgerError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::id::{NodeEpoch, Term};

    use super::*;

    fn ledger() -> Ledger {
        Ledger {
            term: Term(3),
            epoch: NodeEpoch(9),
            ..Ledger::new("n1".into())
        }
    }

    #[test]
    fn comes_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            read(dir.path(), &"n1".into(), false).unwrap(),
            Ledger::new("n1".into())
        );
        write(dir.path(), &ledger()).unwrap();
        assert_eq!(read(dir.path(), &"n1".into(), true).unwrap(), ledger());
    }

    #[test]
    fn torn_or_flipped_anywhere_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &ledger()).unwrap();
        let path = dir.path().join(NAME);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            fs::write(&path, &good[..at]).unwrap();
            assert!(
                matches!(
                    read(dir.path(), &"n1".into(), false),
                    Err(LedgerError::Damaged { .. })
                ),
                "cut at {at}"
            );
            for bit in 0..8 {
                let mut flipped = good.clone();
                flipped[at] ^= 1 << bit;
                fs::write(&path, &flipped).unwrap();
                assert!(
                    matches!(
                        read(dir.path(), &"n1".into(), false),
                        Err(LedgerError::Damaged { .. })
                    ),
                    "bit {bit} of {at}"
                );
                assert_eq!(fs::read(&path).unwrap(), flipped);
            }
        }
    }

    #[test]
    fn what_to_do_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let shown = path.display();
        let anew = "or make sure that no worker runs on this node and move the whole state directory away to start anew";
        let error = read(dir.path(), &"n1".into(), true)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            format!(
                "{shown}: is missing although runs lie beside it; restore it from a backup, {anew}"
            )
        );
        write(dir.path(), &ledger()).unwrap();
        let error = read(dir.path(), &"n2".into(), true)
            .unwrap_err()
            .to_string();
        let own = "give it its own --state-dir, or --node-name n1";
        assert_eq!(
            error,
            format!("{shown}: belongs to node n1, this agent is n2; {own}")
        );
        fs::write(&path, "garbage\n").unwrap();
        let error = read(dir.path(), &"n1".into(), true)
            .unwrap_err()
            .to_string();
        let what = "it is cut off, or was written by something else: its end is no checksum";
        assert_eq!(
            error,
            format!("{shown}: {what}; restore the file from a backup, {anew}")
        );
        fs::write(&path, "{\"v\":1,\"sum\":\"00000000\"}\n").unwrap();
        let error = read(dir.path(), &"n1".into(), true)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(&format!("{shown}: its checksum does not match; ")));
    }
}
