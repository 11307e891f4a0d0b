//! As whom jobs run, from the flags.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use muster_core::node::account::UserMap;

use super::{WrongFlag, wrong};

/// As whom jobs run on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// All as the agent's own user, or as that of the container that workers live in.
    Agents,
    /// Each as its owner, whom the machine's accounts know, or the operator's list.
    Owners(Option<UserMap>),
}

impl Users {
    pub(crate) fn are_owners(&self) -> bool {
        matches!(self, Users::Owners(_))
    }
}

/// The longest list: 100,000 lines of some 80 bytes.
const LIST_MAX: u64 = 8 << 20;

pub(super) fn users(as_owner: bool, list: Option<&Path>) -> Result<Users, WrongFlag> {
    match (as_owner, list) {
        (false, None) => Ok(Users::Agents),
        (false, Some(_)) => Err(wrong("user-map", "is only of use with --run-as-owner")),
        (true, None) => Ok(Users::Owners(None)),
        (true, Some(path)) => {
            let refuse = |why: String| wrong("user-map", format!("{}: {why}", path.display()));
            let about = fs::metadata(path).map_err(|e| refuse(e.to_string()))?;
            // Whoever can write the list can become anybody in it.
            if about.mode() & 0o022 != 0 {
                return Err(refuse("others can write it: chmod go-w".into()));
            }
            let text = muster_runner::folder::read_named(path, LIST_MAX)
                .map_err(|e| refuse(e.to_string()))?;
            let text = String::from_utf8(text).map_err(|e| refuse(e.to_string()))?;
            let map = UserMap::parse(&text).map_err(refuse)?;
            Ok(Users::Owners(Some(map)))
        }
    }
}

/// The folders on the way to the runs of other users, which these must be able to enter. The first that
/// they cannot enter. `to`: the agent's own folder, which it opens itself.
pub(super) fn closed(to: &Path) -> Option<PathBuf> {
    let above = to.ancestors().skip(1);
    above
        .filter(|dir| fs::metadata(dir).is_ok_and(|about| about.mode() & 0o001 == 0))
        .last()
        .map(Path::to_owned)
}
