//! The fields of a receiver of mail.

use muster_core::spec::notify::address_error;
use serde_json::Value;

use super::{Fields, Wrong, secret};
use crate::notify::mailbox::{Login, MailServer, Mailbox, RECIPIENTS_MAX, StartTls};

/// Reads and checks them. `None`: something is wrong, which is noted.
pub(super) fn mailbox(fields: &mut Fields<'_>, wrong: &mut Wrong) -> Option<Mailbox> {
    let server = match fields.text("server", wrong).map(MailServer::parse) {
        Some(Ok(server)) => Some(server),
        Some(Err(why)) => {
            wrong.note(&fields.path("server"), why);
            None
        }
        None => {
            let what = "name the server, as smtp://mail.example.org or smtps://mail.example.org";
            wrong.note(&fields.path("server"), what);
            None
        }
    };
    let from = fields.text("from", wrong).unwrap_or_default().to_owned();
    if let Some(why) = address_error(&from) {
        wrong.note(&fields.path("from"), why);
    }
    let mut to: Vec<String> = Vec::new();
    let addresses = fields.words("to", wrong);
    if addresses.is_empty() {
        wrong.note(&fields.path("to"), "name at least one address");
    }
    if addresses.len() > RECIPIENTS_MAX {
        let what = format!("at most {RECIPIENTS_MAX} are allowed");
        wrong.note(&fields.path("to"), what);
    }
    for (path, address) in addresses {
        if let Some(why) = address_error(address) {
            wrong.note(&path, why);
        } else if to.iter().any(|known| known == address) {
            wrong.note(&path, format!("{address} stands twice"));
        }
        to.push(address.to_owned());
    }
    let start_tls = start_tls(fields, server.as_ref(), wrong);
    let login = login(fields, start_tls, server.as_ref(), wrong);
    Some(Mailbox {
        server: server?,
        start_tls,
        from,
        to,
        login,
    })
}

fn start_tls(fields: &mut Fields<'_>, server: Option<&MailServer>, wrong: &mut Wrong) -> StartTls {
    let word = match fields.get("startTls") {
        None => return StartTls::Required,
        // Without quotes, off is no text in YAML.
        Some(Value::Bool(false)) => "off",
        Some(value) => value.as_str().unwrap_or_default(),
    };
    let path = fields.path("startTls");
    if server.is_some_and(|server| server.tls) {
        wrong.note(&path, "smtps:// is TLS from the beginning, so leave it out");
    }
    let known = StartTls::ALL.iter().find(|(known, _)| *known == word);
    let Some((_, known)) = known else {
        let words = StartTls::ALL.map(|(word, _)| word).join(", ");
        wrong.note(&path, format!("{word:?} is not one of {words}"));
        return StartTls::Required;
    };
    *known
}

fn login(
    fields: &mut Fields<'_>,
    start_tls: StartTls,
    server: Option<&MailServer>,
    wrong: &mut Wrong,
) -> Option<Login> {
    let user = secret(fields, ["user", "userFile", "userEnv"], wrong);
    let password = secret(fields, ["", "passwordFile", "passwordEnv"], wrong);
    for (field, secret) in [("user", &user), ("password", &password)] {
        if let Some(Err(why)) = secret.as_ref().map(super::Secret::read) {
            wrong.note(&fields.path(field), why);
        }
    }
    match (user, password) {
        (Some(user), Some(password)) => {
            if start_tls == StartTls::Off && server.is_some_and(|server| !server.tls) {
                let what = "a password is not sent without TLS: leave out startTls: off";
                wrong.note(&fields.path("password"), what);
            }
            Some(Login { user, password })
        }
        (None, None) => None,
        (Some(_), None) => {
            let what = "the user needs passwordFile or passwordEnv";
            wrong.note(&fields.path("user"), what);
            None
        }
        (None, Some(_)) => {
            let what = "the password needs user, userFile or userEnv";
            wrong.note(&fields.path("password"), what);
            None
        }
    }
}
