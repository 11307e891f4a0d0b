//! What the file opens to jobs.

use std::collections::BTreeMap;

use muster_core::fleet::notify::{Allowed, Open, OpenMail};
use serde_json::Value;

use crate::notify::{
    fields::{Fields, Wrong},
    receiver::{Receiver, To},
};

/// Addresses and domains that one list may have. A site has some domains.
const ALLOWED_MAX: usize = 100;

/// Reads `jobs`. `receivers`: `None`, if something is wrong with them.
pub(super) fn open(
    value: &Value,
    receivers: Option<&BTreeMap<String, Receiver>>,
    wrong: &mut Wrong,
) -> Open {
    let mut open = Open::default();
    let Some(mut fields) = Fields::of("jobs", value, wrong) else {
        return open;
    };
    for (path, name) in fields.words("receivers", wrong) {
        if receivers.is_some_and(|known| !known.contains_key(name)) {
            wrong.note(&path, format!("there is no receiver {name:?}"));
        }
        open.receivers.insert(name.to_owned());
    }
    if let Some(value) = fields.get("mail") {
        open.mail = mail(&fields.path("mail"), value, receivers, wrong);
    }
    fields.end(wrong);
    open
}

fn mail(
    path: &str,
    value: &Value,
    receivers: Option<&BTreeMap<String, Receiver>>,
    wrong: &mut Wrong,
) -> Option<OpenMail> {
    let mut fields = Fields::of(path, value, wrong)?;
    let by = fields.text("by", wrong);
    let sends = |name: &str| {
        let receiver = receivers.map(|known| known.get(name));
        receiver.is_none_or(|one| one.is_some_and(|one| matches!(one.to, To::Mail(_))))
    };
    match by {
        None => wrong.note(&fields.path("by"), "name the receiver that sends this mail"),
        Some(name) if !sends(name) => {
            let what = format!("there is no receiver {name:?} with mail");
            wrong.note(&fields.path("by"), what);
        }
        Some(_) => {}
    }
    let mut to = Vec::new();
    let allowed = fields.words("to", wrong);
    if allowed.is_empty() || allowed.len() > ALLOWED_MAX {
        let what = format!(
            "name 1 to {ALLOWED_MAX} addresses, as ann@example.org, or domains, as *@example.org"
        );
        wrong.note(&fields.path("to"), what);
    }
    for (path, text) in allowed {
        match Allowed::read(text) {
            Ok(allowed) => to.push(allowed),
            Err(why) => wrong.note(&path, why),
        }
    }
    fields.end(wrong);
    let by = by?.to_owned();
    Some(OpenMail { by, to })
}

#[cfg(test)]
mod tests {
    use crate::notify::file::parse;

    fn said(jobs: &str) -> Vec<String> {
        let text = format!(
            "receivers: [{{ name: chat, webhook: {{ url: 'http://a' }} }}, {{ name: mail, mail: {{ server: 'smtp://m', from: m@x, to: [ops@x] }} }}]\njobs: {jobs}\n"
        );
        parse(&text).err().unwrap_or_default()
    }

    #[test]
    fn what_is_open_is_read() {
        let text = "
receivers:
- { name: chat, webhook: { url: 'http://a' } }
- { name: mail, mail: { server: 'smtp://m', from: m@x, to: [ops@x] } }
jobs:
  receivers: [chat]
  mail: { by: mail, to: ['*@example.org', ann@other.org] }
";
        let open = parse(text).unwrap().rules.open;
        assert_eq!(open.receivers, ["chat".to_owned()].into());
        let mail = open.mail.unwrap();
        assert_eq!(mail.by, "mail");
        assert!(mail.allows("bob@example.org") && mail.allows("ann@other.org"));
        assert!(!mail.allows("bob@other.org"));
        let closed = "receivers: [{ name: chat, webhook: { url: 'http://a' } }]";
        assert!(
            parse(closed).unwrap().rules.open.is_nothing(),
            "if nothing is said"
        );
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        assert_eq!(
            said(
                "{ receivers: [pager, chat], mails: 1, mail: { by: chat, to: ['*', ann], from: x } }"
            ),
            [
                "jobs.receivers[0]: there is no receiver \"pager\"",
                "jobs.mail.by: there is no receiver \"chat\" with mail",
                "jobs.mail.to[0]: \"*\" is neither an address, as ann@example.org, nor all of a domain, as *@example.org",
                "jobs.mail.to[1]: \"ann\" is neither an address, as ann@example.org, nor all of a domain, as *@example.org",
                "jobs.mail.from: is not known; known are by, to",
                "jobs.mails: is not known; known are mail, receivers",
            ]
        );
        assert_eq!(
            said("{ mail: {} }"),
            [
                "jobs.mail.by: name the receiver that sends this mail",
                "jobs.mail.to: name 1 to 100 addresses, as ann@example.org, or domains, as *@example.org",
            ]
        );
        assert_eq!(said("yes").len(), 1);
    }
}
