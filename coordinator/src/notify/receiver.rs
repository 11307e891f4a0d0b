//! One receiver: where it is and what proves us to it. Both may be secrets, so they are named by a file or a variable
//! and read at each request: a rotated secret needs no restart. What is shown of an address is its host.

use std::{env, fs, io::Read, path::PathBuf, sync::Arc};

use rustls::ClientConfig;

use super::mailbox::Mailbox;

/// A secret is a token or an address.
const SECRET_MAX: u64 = 16 << 10;

/// In which form messages are sent over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// JSON of our own.
    Webhook,
    /// `{"text": ..}`, as Slack, Mattermost and Rocket.Chat take it.
    Slack,
    /// Alertmanager's API, version 2.
    Alertmanager,
}

impl Form {
    pub(crate) const ALL: [Form; 3] = [Form::Webhook, Form::Slack, Form::Alertmanager];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Form::Webhook => "webhook",
            Form::Slack => "slack",
            Form::Alertmanager => "alertmanager",
        }
    }
}

/// A text that may be a secret, or where it is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    Plain(String),
    File(PathBuf),
    Variable(String),
}

impl Secret {
    /// Reads it. The error never shows it.
    pub(crate) fn read(&self) -> Result<String, String> {
        let text = match self {
            Secret::Plain(text) => text.clone(),
            Secret::File(path) => {
                let read = || {
                    let mut text = String::new();
                    let file = fs::File::open(path)?;
                    file.take(SECRET_MAX).read_to_string(&mut text)?;
                    Ok(text)
                };
                read().map_err(|e: std::io::Error| format!("read {}: {e}", path.display()))?
            }
            Secret::Variable(name) => {
                env::var(name).map_err(|_| format!("the environment has no variable {name}"))?
            }
        };
        let text = text.trim();
        match text.is_empty() {
            true => Err(format!("{self:?} is empty")),
            false => Ok(text.to_owned()),
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Secret::Plain(_) => f.write_str("a text"),
            Secret::File(path) => write!(f, "file {}", path.display()),
            Secret::Variable(name) => write!(f, "variable {name}"),
        }
    }
}

/// Where to send something.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// With the query.
    pub(crate) path: String,
}

impl Address {
    /// Reads a URL. The error does not repeat it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let uri: http::Uri = text.parse().map_err(|_| "is not a URL".to_owned())?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("must begin with https:// or http://".into()),
        };
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("has a name or password before @; use tokenFile instead".into());
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err("names no host".into());
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            tls,
            host,
            port: authority.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            path: path.to_owned(),
        })
    }

    /// The value of the header Host.
    pub(crate) fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// Without the path, which may be a secret.
    pub(crate) fn shown(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    pub(crate) name: String,
    pub(crate) to: To,
    /// Whom TLS trusts.
    pub(crate) tls: Arc<ClientConfig>,
}

/// How it is reached.
#[derive(Clone, Debug)]
pub(crate) enum To {
    Http(Endpoint),
    Mail(Mailbox),
}

/// A program that takes requests.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) form: Form,
    pub(crate) url: Secret,
    /// Sent as a bearer token.
    pub(crate) token: Option<Secret>,
    /// Signs the messages of a webhook.
    pub(crate) key: Option<Secret>,
}

impl Endpoint {
    pub(crate) fn address(&self) -> Result<Address, String> {
        let mut address = Address::parse(&self.url.read()?)?;
        if self.form == Form::Alertmanager {
            let base = address.path.trim_end_matches('/');
            let whole = base.ends_with("/api/v2/alerts");
            address.path = match whole {
                true => base.to_owned(),
                false => format!("{base}/api/v2/alerts"),
            };
        }
        Ok(address)
    }
}

impl Receiver {
    /// The word in the operator's file.
    pub(crate) fn form(&self) -> &'static str {
        match &self.to {
            To::Http(endpoint) => endpoint.form.word(),
            To::Mail(_) => "mail",
        }
    }

    /// Its address for people.
    pub(crate) fn shown(&self) -> String {
        match &self.to {
            To::Http(endpoint) => match endpoint.address() {
                Ok(address) => address.shown(),
                Err(why) => why,
            },
            To::Mail(mailbox) => mailbox.shown(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_path() {
        let parse = |text| Address::parse(text).map(|address| (address.shown(), address.path));
        let own = |shown: &str, path: &str| Ok((shown.to_owned(), path.to_owned()));
        assert_eq!(
            parse("https://hooks.example.com/services/T0/SECRET?x=1"),
            own("https://hooks.example.com", "/services/T0/SECRET?x=1")
        );
        assert_eq!(parse("http://[::1]:9093"), own("http://[::1]:9093", "/"));
        for bad in [
            "ftp://a/b",
            "a/b",
            "https://",
            "https://ann:secret@example.com/",
            "not a secret",
        ] {
            let why = parse(bad).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
