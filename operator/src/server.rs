//! One question to the API server and its answer, within seconds or not at all. Nothing is tried
//! again here: whoever waits for the answer tries again, and an API server that is overloaded is not
//! helped by more questions.

use std::time::Duration;

use http::{Method, Request, header::CONTENT_TYPE};
use kube::{Client, Config, Error};
use muster_handle::lead::Lead;
use muster_runtime::chain::chain;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

/// How long an answer may take. An agent waits for it, and comes again if there is none.
const ANSWER: Duration = Duration::from_secs(4);

/// Bytes of a text of the API server that is passed on.
const TEXT_MAX: usize = 300;

/// Why there is no client for an API server.
#[derive(Debug, thiserror::Error)]
pub enum NoServer {
    #[error("--kubernetes-...: make a client for the API server")]
    Client(#[source] Box<Error>),
    #[error(
        "--kubernetes-agents, --kubernetes-users, --kubernetes-cordon: tokens would go to the API server at {0} without TLS, where others can read them"
    )]
    Insecure(String),
}

/// An API server, for questions that somebody waits for.
#[derive(Clone)]
pub struct Server {
    client: Client,
    /// Without it nothing is written.
    lead: Lead,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// Why there is no answer. Never holds what was asked, because that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    #[error("it did not answer within {} s", ANSWER.as_secs())]
    Silent,
    /// The API server was not asked. Another coordinator may have decided otherwise.
    #[error("this coordinator does not lead any more")]
    NotLeading,
    #[error("it does not know who asks (401)")]
    Unknown,
    #[error("the coordinator may not ask: {0}")]
    Forbidden(String),
    #[error("it is overloaded (429)")]
    Busy,
    /// There is an object of this name already.
    #[error("{0} (409)")]
    Exists(String),
    #[error("{text} ({code})")]
    Refused { code: u16, text: String },
    #[error("{0}")]
    Unreachable(String),
    #[error("its answer cannot be read (line {line}, column {column})")]
    Malformed { line: usize, column: usize },
}

impl Server {
    /// `configuration` must not send tokens in clear text to another machine.
    pub fn of(configuration: &Config) -> Result<Self, NoServer> {
        let url = &configuration.cluster_url;
        let host = url.host().unwrap_or_default();
        let is_here = host == "localhost"
            || (host.trim_matches(['[', ']']).parse::<std::net::IpAddr>())
                .is_ok_and(|address| address.is_loopback());
        if url.scheme_str() != Some("https") && !is_here {
            return Err(NoServer::Insecure(url.to_string()));
        }
        let mut configuration = configuration.clone();
        // kube waits for minutes between its attempts, and here somebody waits.
        configuration.default_retry = false;
        configuration.connect_timeout = Some(ANSWER);
        let client =
            Client::try_from(configuration).map_err(|source| NoServer::Client(Box::new(source)))?;
        Ok(Self {
            client,
            lead: Lead::for_life(),
        })
    }

    /// For what follows from decisions: it is written only as long as this coordinator leads. What it
    /// wants to write may be what its successor has taken back, and an object's version does not tell.
    pub fn while_leading(self, lead: Lead) -> Self {
        Self { lead, ..self }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Unanswered> {
        self.ask(Method::GET, path, None, Vec::new()).await
    }

    /// Creates an object and returns what the server made of it.
    pub async fn create<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &impl serde::Serialize,
    ) -> Result<T, Unanswered> {
        let body = serde_json::to_vec(object).expect("objects have a JSON form");
        self.ask(Method::POST, path, Some("application/json"), body)
            .await
    }

    /// Puts another object in the place of one, if that still has the version which the new one names.
    pub async fn replace<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &impl serde::Serialize,
    ) -> Result<T, Unanswered> {
        let body = serde_json::to_vec(object).expect("objects have a JSON form");
        self.ask(Method::PUT, path, Some("application/json"), body)
            .await
    }

    /// Makes or changes an object by server-side apply.
    pub async fn apply<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &impl serde::Serialize,
    ) -> Result<T, Unanswered> {
        // JSON is YAML.
        let content = Some("application/apply-patch+yaml");
        let body = serde_json::to_vec(object).expect("objects have a JSON form");
        self.ask(Method::PATCH, path, content, body).await
    }

    /// Changes an object by a merge patch (RFC 7386): what it does not name stays.
    pub async fn merge<T: DeserializeOwned>(
        &self,
        path: &str,
        patch: &impl serde::Serialize,
    ) -> Result<T, Unanswered> {
        let content = Some("application/merge-patch+json");
        let body = serde_json::to_vec(patch).expect("patches have a JSON form");
        self.ask(Method::PATCH, path, content, body).await
    }

    /// Deletes an object, under the conditions that the options name.
    pub async fn delete<T: DeserializeOwned>(
        &self,
        path: &str,
        options: &impl serde::Serialize,
    ) -> Result<T, Unanswered> {
        let body = serde_json::to_vec(options).expect("options have a JSON form");
        self.ask(Method::DELETE, path, Some("application/json"), body)
            .await
    }

    /// The same, and lists whose items have a key are merged by it, as conditions by their type.
    pub(crate) async fn merge_by_key<T: DeserializeOwned>(
        &self,
        path: &str,
        patch: &impl serde::Serialize,
    ) -> Result<T, Unanswered> {
        let content = Some("application/strategic-merge-patch+json");
        let body = serde_json::to_vec(patch).expect("objects have a JSON form");
        self.ask(Method::PATCH, path, content, body).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content: Option<&str>,
        body: Vec<u8>,
    ) -> Result<T, Unanswered> {
        if method != Method::GET && !self.lead.still_holds() {
            return Err(Unanswered::NotLeading);
        }
        let mut request = Request::builder().method(method).uri(path);
        if let Some(content) = content {
            request = request.header(CONTENT_TYPE, content);
        }
        let request = request.body(body).expect("paths are made of checked names");
        // As text: kube would log an answer that it cannot read, and answers repeat the question.
        let answer = timeout(ANSWER, Box::pin(self.client.request_text(request))).await;
        let text = answer
            .map_err(|_| Unanswered::Silent)?
            .map_err(unanswered)?;
        serde_json::from_str(&text).map_err(|e| Unanswered::Malformed {
            line: e.line(),
            column: e.column(),
        })
    }
}

impl Unanswered {
    /// Whether the API server may have done what it was asked for. Nobody can tell.
    pub fn may_be_done(&self) -> bool {
        match self {
            Self::Silent | Self::Unreachable(_) | Self::Malformed { .. } => true,
            Self::Refused { code, .. } => *code >= 500 && !self.is_too_large(),
            Self::NotLeading
            | Self::Unknown
            | Self::Forbidden(_)
            | Self::Busy
            | Self::Exists(_) => false,
        }
    }

    /// The object is larger than the API server takes, or than the etcd behind it does. To ask again is
    /// in vain. Nothing was done.
    pub fn is_too_large(&self) -> bool {
        match self {
            Self::Refused { code: 413, .. } => true,
            // As etcd says it, and as the API server's client of etcd does, which sends no more than
            // 2 MiB. Both come as an internal error.
            Self::Refused { code, text } if *code >= 500 => {
                text.contains("request is too large") || text.contains("message larger than max")
            }
            _ => false,
        }
    }

    /// Somebody else has changed or made the object.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, .. } | Self::Exists(_))
    }

    /// It says so itself.
    pub fn is_busy(&self) -> bool {
        *self == Self::Busy
    }

    /// What a list began with is forgotten.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. })
    }

    /// There is no such object.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}

fn unanswered(error: Error) -> Unanswered {
    match error {
        Error::Api(status) => match status.code {
            401 => Unanswered::Unknown,
            403 => Unanswered::Forbidden(cut(&status.message)),
            429 => Unanswered::Busy,
            // Other conflicts have the same number.
            409 if status.reason == "AlreadyExists" => Unanswered::Exists(cut(&status.message)),
            code => Unanswered::Refused {
                code,
                text: cut(&status.message),
            },
        },
        other => Unanswered::Unreachable(cut(&chain(&other))),
    }
}

/// A text of somebody else, fit for a log line and a status.
pub fn cut(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut cut: String = text.chars().take(TEXT_MAX).map(plain).collect();
    if text.chars().nth(TEXT_MAX).is_some() {
        cut.push_str("...");
    }
    cut
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn who_does_not_lead_any_more_reads_and_writes_nothing() {
        // Nobody listens at port 1, so whatever is sent comes to `Unreachable`.
        let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
        let leads = Arc::new(AtomicBool::new(true));
        let lead = Lead::new({
            let leads = leads.clone();
            move || leads.load(Ordering::SeqCst)
        });
        let server = Server::of(&nowhere).unwrap().while_leading(lead);
        let object = json!({});
        for is_leader in [true, false] {
            leads.store(is_leader, Ordering::SeqCst);
            let read = server.get::<Value>("/o").await;
            assert!(matches!(read, Err(Unanswered::Unreachable(_))), "{read:?}");
            for written in [
                server.create::<Value>("/o", &object).await,
                server.replace("/o", &object).await,
                server.apply("/o", &object).await,
                server.merge("/o", &object).await,
                server.merge_by_key("/o", &object).await,
                server.delete("/o", &object).await,
            ] {
                let why = written.unwrap_err();
                assert_eq!(why != Unanswered::NotLeading, is_leader, "{why:?}");
            }
        }
    }
}
