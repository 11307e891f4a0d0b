//! The connection to a coordinator, and the explanation of its failures to a person.

use std::{error::Error as _, future::Future, time::Duration};

use muster_proto::{
    limits,
    v1::{
        JobRef, event_service_client::EventServiceClient, job_service_client::JobServiceClient,
        node_service_client::NodeServiceClient,
    },
};
use muster_runtime::dial::Dialer;
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};

use crate::fail::Failure;

/// A coordinator that runs answers a connection attempt at once. Behind a dead route an attempt
/// would keep a user waiting for minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Client {
    server: String,
    channel: Channel,
    timeout: Option<Duration>,
}

impl Client {
    pub(crate) async fn connect(
        server: &str,
        timeout: Option<Duration>,
    ) -> Result<Client, Failure> {
        let server = if server.contains("://") {
            server.to_owned()
        } else {
            format!("http://{server}")
        };
        if server.starts_with("https://") {
            return Err(Failure::usage(format!(
                "--server {server}: this build speaks no TLS; use http:// on this machine"
            )));
        }
        let endpoint = Endpoint::from_shared(server.clone())
            .map_err(|error| Failure::usage(format!("--server {server:?} is not a URL: {error}")))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(limits::KEEPALIVE_INTERVAL)
            .keep_alive_timeout(limits::KEEPALIVE_TIMEOUT);
        match endpoint.connect_with_connector(Dialer::default()).await {
            Ok(channel) => Ok(Client {
                server,
                channel,
                timeout,
            }),
            Err(error) => Err(unreachable(&server, &innermost(&error))),
        }
    }

    pub(crate) fn jobs(&self) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel.clone())
            .max_decoding_message_size(limits::MESSAGE_MAX)
            .max_encoding_message_size(limits::MESSAGE_MAX)
    }

    pub(crate) fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel.clone()).max_decoding_message_size(limits::MESSAGE_MAX)
    }

    pub(crate) fn events(&self) -> EventServiceClient<Channel> {
        EventServiceClient::new(self.channel.clone()).max_decoding_message_size(limits::MESSAGE_MAX)
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
        let message = status.message().to_owned();
        match status.code() {
            Code::Unavailable => {
                unreachable(&self.server, &status.source().map_or(message, innermost))
            }
            Code::Unauthenticated | Code::PermissionDenied => {
                Failure::Unreachable(format!("{} refuses: {message}", self.server))
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

fn unreachable(server: &str, why: &str) -> Failure {
    Failure::Unreachable(format!(
        "cannot reach the coordinator at {server}: {why}; is it running? `muster local up` starts one here, --server names another"
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
