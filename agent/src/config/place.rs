//! This node's place in the cluster: its name, its address, its coordinator and its certificate, from
//! the flags and from what `muster-agent join` got.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
    path::{Path, PathBuf},
};

use muster_core::id::node_name_error;
use muster_rpc::{Address, BadAddress, credentials::Credentials};

use super::{WrongFlag, wrong};

pub(crate) fn host_name() -> Result<String, WrongFlag> {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    match node_name_error(&name) {
        None => Ok(name),
        Some(message) => Err(wrong(
            "node-name",
            format!("is needed, since the host name cannot be used: {message}"),
        )),
    }
}

/// Where `muster-agent join` puts what it gets.
pub fn credentials_path(state_dir: &Path) -> PathBuf {
    state_dir.join("identity/credentials.json")
}

/// What `muster-agent join` got for this state directory. `None`: it never ran.
pub(super) fn joined(state_dir: &Path) -> Result<Option<Credentials>, WrongFlag> {
    let path = credentials_path(state_dir);
    if !path.exists() {
        return Ok(None);
    }
    let read = Credentials::read(&path);
    read.map(Some)
        .map_err(|e| wrong("state-dir", e.to_string()))
}

pub(super) fn node_name(
    given: Option<String>,
    joined: Option<&Credentials>,
) -> Result<String, WrongFlag> {
    let certified = joined.and_then(|own| own.principal.strip_prefix("host/"));
    let node = match (given, certified) {
        (Some(name), _) => name,
        (None, Some(name)) => name.to_owned(),
        (None, None) => host_name()?,
    };
    match node_name_error(&node) {
        Some(message) => Err(wrong("node-name", message)),
        None => Ok(node),
    }
}

pub(super) fn coordinator(
    given: Option<String>,
    joined: Option<&Credentials>,
) -> Result<Address, WrongFlag> {
    let text = given
        .or_else(|| joined.map(|own| own.server.clone()))
        .unwrap_or_else(|| "http://127.0.0.1:7070".into());
    let refuse = |message: String| Err(wrong("coordinator", message));
    match text.parse::<Address>() {
        Ok(address) if address.port().is_some() && !address.is_tls() && !address.is_loopback() => {
            refuse(format!(
                "{text:?} is beyond loopback, where only TLS is spoken; use https://"
            ))
        }
        Ok(address) if address.port().is_some() => Ok(address),
        Ok(_) | Err(BadAddress::NotUrl(_)) => refuse(format!(
            "{text:?} is not a URL like https://train.example.org:7070 or http://127.0.0.1:7070"
        )),
    }
}

pub(super) fn address(given: Option<&str>, coordinator: &Address) -> Result<IpAddr, WrongFlag> {
    let Some(text) = given else {
        if !coordinator.is_tls() {
            return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        return source_of(coordinator).map_err(|e| {
            let message = format!(
                "this machine's address towards {coordinator} cannot be found ({e}); say it with this flag"
            );
            wrong("address", message)
        });
    };
    let address: IpAddr = text
        .parse()
        .map_err(|_| wrong("address", format!("{text:?} is not an IP address")))?;
    if !coordinator.is_tls() && !address.is_loopback() {
        // A job's TCPStore listens on this address.
        return Err(wrong(
            "address",
            format!(
                "{text} is beyond loopback, and the coordinator at {coordinator} serves this machine only"
            ),
        ));
    }
    Ok(address)
}

/// The address from which this machine would call the coordinator. Nothing is sent.
fn source_of(coordinator: &Address) -> io::Result<IpAddr> {
    let port = coordinator.port().unwrap_or(443);
    let mut why = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for there in (coordinator.host(), port).to_socket_addrs()? {
        let any: IpAddr = match there {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let asked = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(there)?;
            socket.local_addr()
        });
        match asked {
            Ok(own) => return Ok(own.ip()),
            Err(e) => why = e,
        }
    }
    Err(why)
}
