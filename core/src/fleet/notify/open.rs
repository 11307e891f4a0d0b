//! What the operator opens to jobs. Without a word nothing is open: the coordinator is a machine inside the site that would
//! send to whomever a user names.

use std::collections::BTreeSet;

use crate::{
    fleet::notify::addressee::Addressee,
    spec::notify::{Notify, job_address_error},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// The receivers that a job may name.
    pub receivers: BTreeSet<String>,
    /// `None`: a job may name no address.
    pub mail: Option<OpenMail>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenMail {
    /// The receiver that sends it.
    pub by: String,
    pub to: Vec<Allowed>,
}

/// Addresses that a job may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// All of this domain, and none of those below it.
    Domain(String),
    Address(String),
}

impl Allowed {
    /// Reads `*@example.org` or `ann@example.org`.
    pub fn read(text: &str) -> Result<Self, String> {
        let domain = text.strip_prefix("*@");
        let address = domain.map(|domain| format!("any@{domain}"));
        if job_address_error(address.as_deref().unwrap_or(text)).is_some() {
            return Err(format!(
                "{text:?} is neither an address, as ann@example.org, nor all of a domain, as *@example.org"
            ));
        }
        Ok(match domain {
            Some(domain) => Allowed::Domain(domain.to_ascii_lowercase()),
            None => Allowed::Address(text.to_ascii_lowercase()),
        })
    }

    fn has(&self, address: &str) -> bool {
        let address = address.to_ascii_lowercase();
        match self {
            Allowed::Domain(own) => {
                { address.split_once('@') }.is_some_and(|(_, domain)| domain == own)
            }
            Allowed::Address(own) => address == *own,
        }
    }
}

impl OpenMail {
    pub fn allows(&self, address: &str) -> bool {
        self.to.iter().any(|allowed| allowed.has(address))
    }

    /// For a user: whole domains. Single people are not named.
    pub fn shown(&self) -> Vec<String> {
        let domain = |allowed: &Allowed| match allowed {
            Allowed::Domain(domain) => Some(format!("*@{domain}")),
            Allowed::Address(_) => None,
        };
        let mut words: Vec<String> = self.to.iter().filter_map(domain).collect();
        match self.to.len() - words.len() {
            0 => {}
            1 => words.push("one single address".to_owned()),
            single => words.push(format!("{single} single addresses")),
        }
        words
    }
}

impl Open {
    pub fn is_nothing(&self) -> bool {
        self.receivers.is_empty() && self.mail.is_none()
    }

    /// What a job may name of this receiver: its name, and addresses.
    pub fn of(&self, receiver: &str) -> Vec<String> {
        let named = self.receivers.get(receiver).cloned();
        let mail = self.mail.iter().filter(|mail| mail.by == receiver);
        named
            .into_iter()
            .chain(mail.flat_map(OpenMail::shown))
            .collect()
    }

    /// Whether jobs may have a message sent to this one.
    pub(super) fn allows(&self, addressee: &Addressee) -> bool {
        let Addressee { receiver, to, .. } = addressee;
        match to {
            None => self.receivers.contains(receiver),
            Some(to) => {
                let mail = self.mail.as_ref().filter(|mail| mail.by == *receiver);
                mail.is_some_and(|mail| mail.allows(to))
            }
        }
    }

    /// The first thing that a job may not ask for: its field, and why not.
    pub(super) fn refuses(&self, notify: &[Notify]) -> Option<(String, String)> {
        let mut entries = notify.iter().enumerate();
        entries.find_map(|(at, entry)| {
            let mut receivers = entry.receivers.iter();
            if let Some(name) = receivers.find(|name| !self.receivers.contains(*name)) {
                let open: Vec<&str> = self.receivers.iter().map(String::as_str).collect();
                let why = match open.is_empty() {
                    true => "the operator lets jobs name no receivers (jobs in --notify of the coordinator)".to_owned(),
                    false => format!("{name:?} is not open to jobs; open are {}", open.join(", ")),
                };
                return Some((format!("spec.notify[{at}].receivers"), why));
            }
            let address = entry.mail.iter().find(|to| match &self.mail {
                Some(mail) => !mail.allows(to),
                None => true,
            })?;
            let why = match &self.mail {
                Some(mail) => format!(
                    "mail to {address:?} is not open to jobs; allowed are {}",
                    mail.shown().join(", ")
                ),
                None => "the operator lets jobs name no addresses (jobs in --notify of the coordinator)".to_owned(),
            };
            Some((format!("spec.notify[{at}].mail"), why))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Open {
        let to = ["*@example.org", "Ann@other.org"];
        Open {
            receivers: ["chat".to_owned(), "team-a".to_owned()].into(),
            mail: Some(OpenMail {
                by: "mail".into(),
                to: to.map(|text| Allowed::read(text).unwrap()).to_vec(),
            }),
        }
    }

    fn asks(receivers: &[&str], mail: &[&str]) -> Vec<Notify> {
        let set = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        vec![Notify {
            kinds: BTreeSet::new(),
            receivers: set(receivers),
            mail: set(mail),
        }]
    }

    #[test]
    fn a_job_may_ask_for_what_is_open() {
        let fits = asks(&["chat"], &["bob@EXAMPLE.org", "ann@other.org"]);
        assert_eq!(open().refuses(&fits), None);
        for (asks, field, must) in [
            (
                asks(&["chat", "pager"], &[]),
                "receivers",
                "\"pager\" is not open to jobs; open are chat, team-a",
            ),
            (
                asks(&[], &["bob@other.org"]),
                "mail",
                "mail to \"bob@other.org\" is not open to jobs; allowed are *@example.org, one single address",
            ),
            (
                asks(&[], &["bob@sub.example.org"]),
                "mail",
                "mail to \"bob@sub.example.org\" is not open to jobs; allowed are *@example.org, one single address",
            ),
        ] {
            let refused = open().refuses(&asks);
            assert_eq!(
                refused,
                Some((format!("spec.notify[0].{field}"), must.into()))
            );
        }
        let nothing = Open::default();
        for (asks, what) in [
            (asks(&["chat"], &[]), "receivers"),
            (asks(&[], &["bob@example.org"]), "addresses"),
        ] {
            let (_, why) = nothing.refuses(&asks).unwrap();
            let must = format!(
                "the operator lets jobs name no {what} (jobs in --notify of the coordinator)"
            );
            assert_eq!(why, must);
        }
    }

    #[test]
    fn what_is_allowed_is_one_address_or_one_domain() {
        for bad in ["*", "@example.org", "*@", "a*@b@c", "*@a b", "example.org"] {
            assert!(Allowed::read(bad).is_err(), "{bad}");
        }
        // A star within a name is a letter of that name.
        let named = Allowed::read("a*@example.org").unwrap();
        assert!(!named.has("ab@example.org"));
    }

    #[test]
    fn a_message_that_waits_is_for_somebody_as_long_as_that_is_open() {
        let open = open();
        assert!(open.allows(&Addressee::of_jobs("chat")));
        assert!(!open.allows(&Addressee::of_jobs("mail")));
        assert!(open.allows(&Addressee::by_mail("mail", "Bob@example.org")));
        assert!(!open.allows(&Addressee::by_mail("chat", "bob@example.org")));
    }
}
