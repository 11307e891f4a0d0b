//! The one way to call a coordinator. With TLS, its certificate says that it is the right one.
//! Without TLS only loopback is called, and a trusted user ([`peer`](crate::peer)) must own the
//! other end before a byte is sent, because anybody may take a port that a coordinator has left.

use std::{
    collections::BTreeSet,
    fmt, io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_util::rt::TokioIo;
use muster_proto::{
    limits::MESSAGE_MAX,
    v1::{
        access_service_client::AccessServiceClient, agent_service_client::AgentServiceClient,
        audit_service_client::AuditServiceClient, event_service_client::EventServiceClient,
        history_service_client::HistoryServiceClient, job_service_client::JobServiceClient,
        node_service_client::NodeServiceClient,
        notification_service_client::NotificationServiceClient,
        queue_service_client::QueueServiceClient,
    },
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;
use tower_service::Service;

use crate::{
    KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT,
    address::{Address, bare_host},
    channel::{Channel, Tokens},
    peer::{self, Peer},
    refusal::Refusal,
    tls::{self, ClientTls},
};

/// A coordinator that runs answers a connection attempt at once. Behind a dead route an attempt
/// would keep a user waiting for minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the name service may take. It is less than a connection may take, so that the error says which of
/// the two did not answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(4);
/// The first and the longest pause between checks whether the other end has accepted the
/// connection. A coordinator accepts within microseconds, unless thousands of agents call at once.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));
/// How long the other end may take to accept, which is as long as it may take to connect.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(5);

/// Why the other end is refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(
        "{address} is served by user {uid}, and user {own} trusts only itself and root: this is not your coordinator",
        own = peer::own_user()
    )]
    Stranger { address: SocketAddr, uid: u32 },
    #[error(
        "{address} does not accept the connection, or is in another network namespace: nobody can tell whose it is"
    )]
    Unknown { address: SocketAddr },
    #[error(
        "{0} is beyond this machine, and without TLS nobody can tell whose it is: call it with https://"
    )]
    NeedsTls(SocketAddr),
    #[error(
        "it speaks TLS, and there is no certificate authority to know it by: `muster login` or `muster-agent join` first"
    )]
    NoAuthority,
}

/// What a caller may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// With what a coordinator that speaks TLS is called.
    pub tls: Option<ClientTls>,
    /// The name that must stand in the coordinator's certificate, if it is called by another one.
    pub server_name: Option<String>,
    /// What every call shows to a coordinator that speaks TLS. Without TLS no token is ever sent.
    pub tokens: Option<Tokens>,
    /// Talk also to a coordinator whose user the kernel cannot tell. This is insecure, because
    /// anybody can arrange that.
    pub accept_unknown: bool,
}

/// Why there is no connection. Its sources say what went wrong.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DialError(#[from] tonic::transport::Error);

impl DialError {
    /// What a person can do about it, if a TLS handshake failed.
    pub fn explain(&self) -> Option<&'static str> {
        tls::explain(self)
    }
}

/// Connects to a coordinator.
pub async fn dial(address: &Address, mut options: Options) -> Result<Clients, DialError> {
    let tokens = options.tokens.take().filter(|_| address.is_tls());
    let met = Arc::default();
    let refusal = Refusal::default();
    let channel = Endpoint::from(address.uri())
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        // A call that begins must not find a connection that broke a while ago.
        .keep_alive_while_idle(true)
        .connect_with_connector(Dialer {
            options: Arc::new(options),
            met: Arc::clone(&met),
            refusal: refusal.clone(),
        })
        .await?;
    Ok(Clients {
        channel: Channel::new(channel, tokens),
        met,
        refusal,
    })
}

/// A connection to a coordinator. Cheap to clone; every call of every clone goes over it.
#[derive(Clone, Debug)]
pub struct Clients {
    channel: Channel,
    met: Arc<Mutex<Met>>,
    refusal: Refusal,
}

/// What the last connection with TLS has told.
#[derive(Clone, Debug, Default)]
struct Met {
    /// What the coordinator shows after its own certificate.
    authorities: BTreeSet<tls::Pin>,
    /// The address of this end.
    local: Option<IpAddr>,
}

impl Clients {
    /// The authorities of the cluster, as the coordinator has shown them. Empty without TLS.
    pub fn authorities(&self) -> BTreeSet<tls::Pin> {
        self.met().authorities
    }

    /// The address from which this machine reaches the coordinator. `None` without TLS.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.met().local
    }

    fn met(&self) -> Met {
        let met = self.met.lock();
        met.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a person can do about it, if the coordinator has refused this side's certificate. The
    /// call that this ended may say only that it was canceled.
    pub fn refusal(&self) -> Option<&'static str> {
        self.refusal.get()
    }

    pub fn agents(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub fn jobs(&self) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub fn access(&self) -> AccessServiceClient<Channel> {
        AccessServiceClient::new(self.channel())
    }

    pub fn audit(&self) -> AuditServiceClient<Channel> {
        AuditServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub fn events(&self) -> EventServiceClient<Channel> {
        EventServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub fn history(&self) -> HistoryServiceClient<Channel> {
        HistoryServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub fn notifications(&self) -> NotificationServiceClient<Channel> {
        NotificationServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub fn queues(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    /// For services that are not Muster's own, such as gRPC's health check.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

/// A connection to a coordinator, with or without TLS.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// The addresses of a host. A name service that is silent would use up the time for the whole connection, and
/// nobody would know why there is none.
async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let looked_up = timeout(RESOLVE_TIMEOUT, lookup_host((host, port))).await;
    let unknown = |kind, why: &dyn fmt::Display| {
        let why = format!("the name service does not say where {host} is: {why}");
        io::Error::new(kind, why)
    };
    match looked_up {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(why)) => Err(unknown(why.kind(), &why)),
        Err(_) => {
            let why = format!("no answer within {} s", RESOLVE_TIMEOUT.as_secs());
            Err(unknown(io::ErrorKind::TimedOut, &why))
        }
    }
}

/// Makes the connections of a [`Channel`].
#[derive(Clone, Debug, Default)]
struct Dialer {
    options: Arc<Options>,
    met: Arc<Mutex<Met>>,
    refusal: Refusal,
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Box<dyn Wire>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialer = self.clone();
        Box::pin(async move { dialer.connect(&uri).await.map(TokioIo::new) })
    }
}

impl Dialer {
    async fn connect(&self, uri: &Uri) -> io::Result<Box<dyn Wire>> {
        let tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let addresses = resolve(bare_host(uri), port).await?;
        let stream = TcpStream::connect(&addresses[..]).await?;
        stream.set_nodelay(true)?;
        if tls {
            return self.authenticate(stream, bare_host(uri)).await;
        }
        Ok(Box::new(know_local(stream, &self.options).await?))
    }

    /// Makes sure by its certificate that the right coordinator is at the other end.
    async fn authenticate(&self, stream: TcpStream, host: &str) -> io::Result<Box<dyn Wire>> {
        let refused = |why| io::Error::new(io::ErrorKind::PermissionDenied, why);
        let own = self.options.tls.as_ref();
        let own = own.ok_or_else(|| refused(Refused::NoAuthority))?;
        let name = self.options.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let local = stream.local_addr()?.ip().to_canonical();
        let connector = TlsConnector::from(own.config.clone());
        let stream = connector.connect(name, stream).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let met = Met {
            authorities: chain.iter().skip(1).filter_map(tls::Pin::of).collect(),
            local: Some(local),
        };
        *self.met.lock().unwrap_or_else(PoisonError::into_inner) = met;
        Ok(Box::new(self.refusal.watch(stream)))
    }
}

/// Makes sure by the kernel's word that a trusted user is at the other end, before a byte of gRPC
/// is sent.
async fn know_local(stream: TcpStream, options: &Options) -> io::Result<TcpStream> {
    let (address, own) = (stream.peer_addr()?, stream.local_addr()?);
    let patience = if options.accept_unknown {
        Duration::ZERO
    } else {
        ACCEPTED_WITHIN
    };
    let denied = |refused| Err(io::Error::new(io::ErrorKind::PermissionDenied, refused));
    if !address.ip().to_canonical().is_loopback() {
        return denied(Refused::NeedsTls(address));
    }
    match whose(&stream, (address, own), patience).await? {
        peer if peer.is_trusted() => Ok(stream),
        Peer::Unknown if options.accept_unknown => Ok(stream),
        Peer::Unknown => denied(Refused::Unknown { address }),
        Peer::User(uid) => denied(Refused::Stranger { address, uid }),
    }
}

/// The user at the other end, once it has accepted the connection. If the other end hangs up, this
/// returns at once.
async fn whose(
    stream: &TcpStream,
    (address, own): (SocketAddr, SocketAddr),
    patience: Duration,
) -> io::Result<Peer> {
    let (mut pause, most) = LOOKS;
    let mut waited = Duration::ZERO;
    loop {
        match peer::ask(address, own)? {
            Peer::Unknown if waited < patience => {}
            answer => return Ok(answer),
        }
        match timeout(pause, stream.peek(&mut [0])).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Ok(Err(e)) => return Err(e),
            // The other end has already sent something, so the socket stays readable.
            Ok(Ok(_)) => sleep(pause).await,
            Err(_) => {}
        }
        waited += pause;
        pause = (pause * 2).min(most);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tokio::net::TcpListener;

    use super::*;
    use crate::stranger::as_nobody;

    fn uri(port: u16) -> Uri {
        format!("http://127.0.0.1:{port}").parse().unwrap()
    }

    #[tokio::test]
    async fn a_coordinator_of_ones_own_is_talked_to_once_it_has_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (called, accepted) = tokio::join!(Dialer::default().call(uri(port)), listener.accept());
        accepted.unwrap();
        called.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_accepts_is_not_talked_to() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = Dialer::default().call(uri(port)).await.err().unwrap();
        assert!(
            error.to_string().ends_with("nobody can tell whose it is"),
            "{error}"
        );
        Dialer {
            options: Arc::new(Options {
                accept_unknown: true,
                ..Options::default()
            }),
            ..Dialer::default()
        }
        .call(uri(port))
        .await
        .unwrap();
    }

    /// Runs in real time, because a paused clock would run ahead of the thread that hangs up.
    #[tokio::test]
    async fn who_hangs_up_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let hang_up = std::thread::spawn(move || drop(listener));
        // The kernel resets connections that a closed listener had not accepted.
        let called = Dialer::default().call(uri(port)).await;
        hang_up.join().unwrap();
        let error = called.err().unwrap().to_string();
        assert!(!error.ends_with("nobody can tell whose it is"), "{error}");
    }

    #[tokio::test]
    async fn a_port_that_another_user_has_taken_is_hung_up_on() {
        let Some(squatter) = as_nobody(|| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        else {
            return;
        };
        let port = squatter.local_addr().unwrap().port();
        let heard = std::thread::spawn(move || {
            // A socket belongs to the user that has accepted its connection.
            let mut connection = as_nobody(move || squatter.accept().unwrap().0).unwrap();
            let mut heard = Vec::new();
            connection.read_to_end(&mut heard).unwrap();
            heard
        });
        let error = Dialer::default().call(uri(port)).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(
            error
                .to_string()
                .contains("is served by user 65534, and user 0 trusts only itself and root"),
            "{error}"
        );
        assert!(heard.join().unwrap().is_empty(), "not a byte was sent");
    }
}
