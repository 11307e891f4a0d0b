//! The connection to a coordinator, and the explanation of its failures to a person.

use std::{error::Error as _, future::Future, path::Path, sync::Arc, time::Duration};

use muster_proto::v1::{
    JobRef, access_service_client::AccessServiceClient, audit_service_client::AuditServiceClient,
    event_service_client::EventServiceClient, history_service_client::HistoryServiceClient,
    job_service_client::JobServiceClient, node_service_client::NodeServiceClient,
    notification_service_client::NotificationServiceClient,
    queue_service_client::QueueServiceClient,
};
use muster_rpc::{
    Address, Channel, Clients,
    credentials::{Credentials, now_us},
    dial,
    dial::Options,
    enroll,
    tls::explain,
};
use tonic::{Code, Request, Status};

use crate::{
    contexts::KubernetesEntry,
    fail::Failure,
    kubectl::{Forward, Kubectl},
    shown::{self, Shown},
};

#[derive(Clone)]
pub(crate) struct Client {
    server: Address,
    clients: Clients,
    timeout: Option<Duration>,
    /// What leads to the coordinator, if kubectl does.
    _forward: Option<Arc<Forward>>,
}

impl Client {
    /// `shown`: what this user shows to a coordinator that speaks TLS.
    pub(crate) async fn connect(
        server: &str,
        shown: Option<&Shown>,
        timeout: Option<Duration>,
    ) -> Result<Client, Failure> {
        if let Some(Shown::Kubernetes(entry)) = shown {
            return Self::through_kubectl(server, entry, timeout).await;
        }
        let server = if server.contains("://") {
            server.to_owned()
        } else {
            format!("http://{server}")
        };
        let server = server
            .parse::<Address>()
            .map_err(|why| Failure::usage(format!("--server {server:?} is not a URL: {why}")))?;
        let (mut options, mut known) = (Options::default(), None);
        if server.is_tls() {
            options = match shown {
                Some(Shown::Credentials(path)) => {
                    let own = fresh(path, &server).await?;
                    let tls = Some(own.tls().map_err(Failure::request)?);
                    known = Some((path, own));
                    Options { tls, ..options }
                }
                Some(Shown::Token(entry)) => shown::by_token(entry)?,
                Some(Shown::Certificate(entry)) => shown::by_certificate(entry)?,
                Some(Shown::Kubernetes(_)) | None => {
                    return Err(Failure::Unreachable(format!(
                        "there are no credentials for {server}; get a token from whoever runs it, and run: muster login {server} --ca-pin PIN; \
                         or, for a coordinator that takes tokens of Kubernetes or certificates of your site: muster config set-context"
                    )));
                }
            };
        }
        let mut clients = call(&server, options).await?;
        if let Some((path, own)) = known
            && own.pins() != clients.authorities()
            && let Some(with_new) = renewed(path, &own, &server).await
        {
            clients = with_new;
        }
        Ok(Client {
            server,
            clients,
            timeout,
            _forward: None,
        })
    }

    /// Calls the coordinator of a Kubernetes cluster, at `server`, or if that is empty through a port
    /// that kubectl forwards.
    async fn through_kubectl(
        server: &str,
        entry: &KubernetesEntry,
        timeout: Option<Duration>,
    ) -> Result<Client, Failure> {
        let kubectl = Kubectl::of(entry, !server.is_empty(), timeout);
        let options = shown::by_kubernetes(&kubectl)?;
        let (address, forward) = match server {
            "" => {
                let forward = Forward::open(&kubectl).await?;
                let address = format!("https://127.0.0.1:{}", forward.port());
                (address, Some(Arc::new(forward)))
            }
            server => (server.to_owned(), None),
        };
        let server = address
            .parse::<Address>()
            .map_err(|why| Failure::usage(format!("{address:?} is not a URL: {why}")))?;
        Ok(Client {
            clients: call(&server, options).await?,
            server,
            timeout,
            _forward: forward,
        })
    }

    pub(crate) fn server(&self) -> &Address {
        &self.server
    }

    pub(crate) fn access(&self) -> AccessServiceClient<Channel> {
        self.clients.access()
    }

    pub(crate) fn jobs(&self) -> JobServiceClient<Channel> {
        self.clients.jobs()
    }

    pub(crate) fn nodes(&self) -> NodeServiceClient<Channel> {
        self.clients.nodes()
    }

    pub(crate) fn audit(&self) -> AuditServiceClient<Channel> {
        self.clients.audit()
    }

    pub(crate) fn events(&self) -> EventServiceClient<Channel> {
        self.clients.events()
    }

    pub(crate) fn history(&self) -> HistoryServiceClient<Channel> {
        self.clients.history()
    }

    pub(crate) fn notifications(&self) -> NotificationServiceClient<Channel> {
        self.clients.notifications()
    }

    pub(crate) fn queues(&self) -> QueueServiceClient<Channel> {
        self.clients.queues()
    }

    /// A request with the deadline that the user set.
    pub(crate) fn ask<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(timeout) = self.timeout {
            request.set_timeout(timeout);
        }
        request
    }

    /// Explains a refusal to a person.
    pub(crate) fn failure(&self, status: Status) -> Failure {
        // A refused certificate comes with the first call, and with whatever code.
        if let Some(why) = explain(&status).or_else(|| self.clients.refusal()) {
            return Failure::Unreachable(format!("{}: {why}", self.server));
        }
        let message = status.message().to_owned();
        match status.code() {
            Code::Unavailable => {
                unreachable(&self.server, &status.source().map_or(message, innermost))
            }
            Code::Unauthenticated | Code::PermissionDenied => {
                Failure::Refused(format!("{} refuses: {message}", self.server))
            }
            Code::DeadlineExceeded => {
                Failure::Timeout(format!("{} did not answer in time: {message}", self.server))
            }
            // tonic's status when `grpc-timeout` runs out on our side.
            Code::Cancelled if message.contains("Timeout expired") => Failure::Timeout(format!(
                "{} did not answer within --request-timeout",
                self.server
            )),
            Code::Unimplemented => Failure::Request(format!(
                "{} does not know this request; is it an older version?",
                self.server
            )),
            Code::Internal | Code::Unknown
                if message.contains("transport") || message.contains("h2 protocol") =>
            {
                unreachable(&self.server, &message)
            }
            Code::NotFound => Failure::Request(message.clone() + listed_by(&message)),
            _ => Failure::Request(message),
        }
    }

    /// Sends the request once more if the first attempt was lost on the way. Use it only for
    /// requests that have the same effect when they arrive twice.
    pub(crate) async fn twice<T, F, Fut>(&self, mut send: F) -> Result<T, Failure>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        match send().await {
            Err(status) if lost(&status) => send().await,
            answer => answer,
        }
        .map(tonic::Response::into_inner)
        .map_err(|status| self.failure(status))
    }
}

async fn call(server: &Address, options: Options) -> Result<Clients, Failure> {
    dial(server, options)
        .await
        .map_err(|error| match error.explain() {
            Some(why) => Failure::Unreachable(format!("{server}: {why}")),
            None => unreachable(server, &innermost(&error)),
        })
}

/// The credentials in this file, renewed if two thirds of their life are over.
async fn fresh(path: &Path, server: &Address) -> Result<Credentials, Failure> {
    let own = Credentials::read(path).map_err(Failure::request)?;
    let now = now_us();
    if own.is_expired(now) {
        return Err(Failure::Unreachable(format!(
            "the certificate of {} has expired; get a token from whoever runs {}, and log in again",
            own.principal, own.server
        )));
    }
    if !own.is_due(now) {
        return Ok(own);
    }
    // The old ones are good for days, so a failure is no reason to stop.
    match enroll::renew(&own, server).await {
        Ok(new) => {
            // If it cannot be kept, the next command renews once more.
            let _ = new.write(path);
            Ok(new)
        }
        Err(_) => Ok(own),
    }
}

/// The authority of the cluster changes: gets credentials that know all authorities, and connects
/// with them. `None`: that has failed, and the old ones are still good.
async fn renewed(path: &Path, old: &Credentials, server: &Address) -> Option<Clients> {
    let new = enroll::renew(old, server).await.ok()?;
    // A certificate that cannot be kept is not shown either: the coordinator would think that it is
    // in use.
    new.write(path).ok()?;
    let options = Options {
        tls: Some(new.tls().ok()?),
        ..Options::default()
    };
    dial(server, options).await.ok()
}

/// Whether the connection broke, so that nobody refused the request.
pub(crate) fn lost(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => true,
        Code::Internal | Code::Unknown | Code::Cancelled => {
            status.source().is_some() || status.message().contains("h2 protocol")
        }
        _ => false,
    }
}

/// What to type if a thing is not there.
fn listed_by(message: &str) -> &'static str {
    let is_about = |kind: &str| message.starts_with(kind) && message.ends_with(" not found");
    match (is_about("job "), is_about("node ")) {
        (true, _) => "; `muster get jobs -A` lists the jobs",
        (_, true) => "; `muster nodes` lists the nodes",
        _ => "",
    }
}

fn unreachable(server: &Address, why: &str) -> Failure {
    // To a client without TLS, a server with TLS is a connection that breaks at once, as
    // that of a coordinator that is killed.
    let is_broken =
        why == "transport error" || why.contains("http2") || why.contains("h2 protocol");
    let hint = if !server.is_tls() && is_broken {
        let tls = server.to_string().replacen("http://", "https://", 1);
        format!(
            "; if it speaks TLS since `muster-coordinator init`: muster login {tls} --ca-pin PIN"
        )
    } else {
        String::new()
    };
    Failure::Unreachable(format!(
        "cannot reach the coordinator at {server}: {why}; is it running? `muster local up` starts one here, --server names another{hint}"
    ))
}

/// The last cause in a chain is the useful one: "Connection refused", not "transport error".
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// The job that the command line names. `job/NAME` is what `-o name` prints.
pub(crate) fn job_ref(namespace: String, name: &str) -> JobRef {
    let name = name.strip_prefix("job/").unwrap_or(name);
    JobRef {
        namespace,
        name: name.to_owned(),
    }
}
