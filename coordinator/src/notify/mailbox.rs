//! A receiver of mail: the server that takes it, from whom and to whom it is, and what proves us to the server.

use super::receiver::Secret;

/// Each address costs the server an answer, and all of them must fit into the time of one attempt.
pub(super) const RECIPIENTS_MAX: usize = 50;

/// Recipients that are shown.
const SHOWN: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    pub(crate) server: MailServer,
    pub(crate) start_tls: StartTls,
    pub(crate) from: String,
    pub(crate) to: Vec<String>,
    pub(crate) login: Option<Login>,
}

/// A server of SMTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MailServer {
    /// TLS from the first byte on.
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Whether a connection that begins without TLS goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartTls {
    /// Nothing is sent if the server does not offer it.
    Required,
    /// Who is between us and the server can take the offer away.
    Opportunistic,
    Off,
}

impl StartTls {
    pub(super) const ALL: [(&'static str, StartTls); 3] = [
        ("required", StartTls::Required),
        ("opportunistic", StartTls::Opportunistic),
        ("off", StartTls::Off),
    ];
}

#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) user: Secret,
    pub(crate) password: Secret,
}

impl MailServer {
    /// Reads `smtp://HOST[:PORT]` or `smtps://HOST[:PORT]`. The ports of submission are
    /// <https://www.rfc-editor.org/rfc/rfc8314#section-7>.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let uri: http::Uri = text.parse().map_err(|_| "is not a URL".to_owned())?;
        let tls = match uri.scheme_str() {
            Some("smtps") => true,
            Some("smtp") => false,
            _ => return Err("must begin with smtp:// or smtps://".into()),
        };
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err(
                "has a name or password before @; use userFile and passwordFile instead".into(),
            );
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err("names no host".into());
        }
        if uri
            .path_and_query()
            .is_some_and(|rest| rest.as_str() != "/")
        {
            return Err("has something behind the host and the port".into());
        }
        let port = authority.port_u16();
        Ok(Self {
            tls,
            host,
            port: port.unwrap_or(if tls { 465 } else { 587 }),
        })
    }

    fn shown(&self) -> String {
        let scheme = if self.tls { "smtps" } else { "smtp" };
        match self.host.contains(':') {
            true => format!("{scheme}://[{}]:{}", self.host, self.port),
            false => format!("{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl Mailbox {
    /// For people.
    pub(crate) fn shown(&self) -> String {
        let some: Vec<&str> = { self.to.iter() }.take(SHOWN).map(String::as_str).collect();
        let more = if self.to.len() > SHOWN { ", ..." } else { "" };
        format!("{} to {}{more}", self.server.shown(), some.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_port_of_its_scheme() {
        let parse = |text| MailServer::parse(text).map(|server| server.shown());
        for (text, shown) in [
            ("smtp://mail.example.org", "smtp://mail.example.org:587"),
            ("smtps://mail.example.org", "smtps://mail.example.org:465"),
            ("smtp://[::1]:25", "smtp://[::1]:25"),
            ("smtp://mail:2525/", "smtp://mail:2525"),
        ] {
            assert_eq!(parse(text), Ok(shown.to_owned()));
        }
        for bad in [
            "mail.example.org:25",
            "http://mail",
            "smtp://ann:secret@mail",
            "smtp://mail/box",
            "smtp://",
        ] {
            let why = parse(bad).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
