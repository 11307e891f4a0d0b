//! Which account of a node a job runs as, where the operator has the agent start each job as its owner.
//!
//! The owner's name is looked for among the accounts of the machine, or in a list that the operator has
//! written. Everything that belongs to the job then runs as that account: its runner and launcher, its
//! ranks, the question to its interpreter and the look for its script. Never as root, and never as an
//! account of the system, unless the operator's list says so. The shell asks the machine
//! (`agent::accounts`); the rules are here.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::run::{Assignment, DueTo, Owner, Refusal};

/// The least uid of a person where `/etc/login.defs` does not say: the value of Debian, Fedora and their
/// relatives.
pub const UID_MIN: u32 = 1000;
/// The kernel reads this number as "leave it as it is" (setresuid(2)), so a process that should get it
/// would stay root.
const NO_ID: u32 = u32::MAX;
/// The most groups of an account. The kernel allows 65,536 (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// The most lines of an operator's list.
const LINES_MAX: usize = 100_000;

/// An account of the machine: who a process is, and what a login would tell it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Further groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<u32>,
    pub home: String,
    pub shell: String,
}

impl Account {
    /// The variables that a login sets.
    pub fn env(&self) -> impl Iterator<Item = (String, String)> {
        [
            ("HOME", &self.home),
            ("USER", &self.name),
            ("LOGNAME", &self.name),
            ("SHELL", &self.shell),
        ]
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .into_iter()
    }

    /// `UID:GID:GROUP,GROUP`, as `muster-runner as` takes it.
    pub fn numbers(&self) -> String {
        let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
        format!("{}:{}:{}", self.uid, self.gid, groups.join(","))
    }
}

/// The operator's list: which owner is which account, one a line, `OWNER ACCOUNT`. `#` begins a comment.
///
/// `ACCOUNT` is the name of an account of the machine, or, if the machine has none, its numbers:
/// `UID:GID[:GROUP,...[:HOME[:SHELL]]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMap(BTreeMap<String, Named>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    /// The name of an account of the machine.
    Login(String),
    Numbers(Account),
}

impl UserMap {
    /// Reads the operator's file. The error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut map = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(owner) = words.next() else { continue };
            let at = |why: String| format!("line {}: {why}", number + 1);
            let (Some(account), None) = (words.next(), words.next()) else {
                return Err(at(format!("{:.100?} is not OWNER ACCOUNT", line.trim())));
            };
            let named = named(owner, account).map_err(at)?;
            if map.insert(owner.to_owned(), named).is_some() {
                return Err(at(format!("{owner} is there twice")));
            }
            if map.len() > LINES_MAX {
                return Err(format!("has more than {LINES_MAX} lines"));
            }
        }
        Ok(Self(map))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn named(owner: &str, account: &str) -> Result<Named, String> {
    if !account.contains(':') {
        if account.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "{account} needs a group as well, as in {account}:{account}"
            ));
        }
        return login(account).map(|name| Named::Login(name.to_owned()));
    }
    let mut parts = account.split(':');
    let id = |text: Option<&str>, what: &str| {
        let text = text.unwrap_or_default();
        text.parse::<u32>()
            .map_err(|_| format!("{text:.20?} in {account:.100?} is not the number of a {what}"))
    };
    let (uid, gid) = (id(parts.next(), "user")?, id(parts.next(), "group")?);
    let groups = parts.next().unwrap_or_default();
    let groups = groups.split(',').filter(|group| !group.is_empty());
    let groups = groups
        .map(|group| id(Some(group), "group"))
        .collect::<Result<Vec<_>, _>>()?;
    let path = |text: Option<&str>, usual: &str| match text.filter(|text| !text.is_empty()) {
        Some(path) if !path.starts_with('/') => {
            Err(format!("{path:.100?} is not an absolute path"))
        }
        path => Ok(path.unwrap_or(usual).to_owned()),
    };
    let account = Account {
        name: owner.to_owned(),
        uid,
        gid,
        groups,
        home: path(parts.next(), "/")?,
        shell: path(parts.next(), "/bin/sh")?,
    };
    if let Some(more) = parts.next() {
        return Err(format!(
            "{more:.100?} is more than UID:GID:GROUPS:HOME:SHELL"
        ));
    }
    match never(&account) {
        Some(why) => Err(why),
        None => Ok(Named::Numbers(account)),
    }
}

/// Whether a text can be the name of an account: one that no program takes for an option, a number or a
/// path.
fn login(name: &str) -> Result<&str, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@+".contains(c);
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    match !name.is_empty() && name.len() <= 256 && !name.starts_with('-') && !is_number {
        true if name.chars().all(plain) => Ok(name),
        _ => Err(format!("{name:.100?} cannot be the name of an account")),
    }
}

/// Why no process of a job may have these numbers, whatever anybody says.
fn never(account: &Account) -> Option<String> {
    let Account {
        uid, gid, groups, ..
    } = account;
    if *uid == 0 {
        return Some("no job runs as root (uid 0)".into());
    }
    if [uid, gid].into_iter().chain(groups).any(|id| *id == NO_ID) {
        return Some(format!("{NO_ID} is no number of a user or group"));
    }
    (groups.len() > GROUPS_MAX).then(|| format!("it has more than {GROUPS_MAX} groups"))
}

/// Where the account of an owner is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// The operator's list has it.
    Known(Box<Account>),
    /// The machine is asked for this name, or number. `listed`: the operator's list says so.
    OfMachine { key: String, listed: bool },
}

/// Where to look for the account of the owner of a job. `map`: the operator's list, if there is one; it
/// decides alone then.
pub fn sought(assignment: &Assignment, map: Option<&UserMap>) -> Result<Sought, Refusal> {
    let refuse = |why: String| Err(DueTo::Account.because(why));
    let Some(owner) = &assignment.owner else {
        return refuse(
            "the job has no owner whose name is proven, and jobs run as their owners here: submit it as a user of the cluster".into(),
        );
    };
    match (map, owner) {
        (Some(map), owner) => {
            let key = match owner {
                Owner::User(name) => name.clone(),
                Owner::Local(uid) => uid.to_string(),
            };
            match map.0.get(&key) {
                Some(Named::Numbers(account)) => Ok(Sought::Known(Box::new(account.clone()))),
                Some(Named::Login(name)) => Ok(Sought::OfMachine {
                    key: name.clone(),
                    listed: true,
                }),
                None => refuse(format!(
                    "the job's owner {owner} is not in the list of users (--user-map)"
                )),
            }
        }
        (None, Owner::User(name)) => match login(name) {
            Ok(name) => Ok(Sought::OfMachine {
                key: name.to_owned(),
                listed: false,
            }),
            Err(why) => refuse(format!("the job's owner {owner} has no account: {why}")),
        },
        (None, Owner::Local(uid)) => Ok(Sought::OfMachine {
            key: uid.to_string(),
            listed: false,
        }),
    }
}

/// Reads the answer of the machine about an account: the line of `getent passwd KEY`, and the numbers that
/// `id -G` prints. `uid_min`: accounts below it are the system's.
pub fn of_machine(
    owner: &Owner,
    sought: &Sought,
    passwd: &str,
    groups: &str,
    uid_min: u32,
) -> Result<Account, Refusal> {
    let (key, listed) = match sought {
        Sought::Known(account) => return Ok(account.as_ref().clone()),
        Sought::OfMachine { key, listed } => (key, *listed),
    };
    let refuse = |why: String| Err(DueTo::Account.because(why));
    let Some(account) = passwd.lines().find_map(|line| passwd_line(line, groups)) else {
        return refuse(format!(
            "the job's owner {owner} has no account: there is no user {key}"
        ));
    };
    if let Some(why) = never(&account) {
        return refuse(format!("the job's owner {owner} is {key}, and {why}"));
    }
    if account.uid < uid_min && !listed {
        return refuse(format!(
            "the job's owner {owner} is {key} (uid {}), an account of the system: below {uid_min} only those that --user-map names run jobs",
            account.uid
        ));
    }
    Ok(account)
}

/// `NAME:x:UID:GID:GECOS:HOME:SHELL` (passwd(5)).
fn passwd_line(line: &str, groups: &str) -> Option<Account> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell] = fields[..] else {
        return None;
    };
    let or = |text: &str, usual: &str| match text.trim() {
        "" => usual.to_owned(),
        text => text.to_owned(),
    };
    let gid = gid.parse().ok()?;
    let groups = groups.split_whitespace().filter_map(|id| id.parse().ok());
    Some(Account {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid,
        groups: groups.filter(|group| *group != gid).collect(),
        home: or(home, "/"),
        shell: or(shell, "/bin/sh"),
    })
}

/// The least uid of a person, in the text of `/etc/login.defs`.
pub fn uid_min(login_defs: &str) -> u32 {
    let value = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some("UID_MIN")).then(|| words.next()?.parse().ok())?
    };
    login_defs.lines().find_map(value).unwrap_or(UID_MIN)
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.uid)
    }
}

#[cfg(test)]
mod tests;
