//! Which user is at the other end of a loopback connection. The kernel knows, and no program can
//! pretend to be another user's.
//!
//! A user who may talk to a coordinator can run programs on every node, and an agent does what its
//! coordinator says. So both ends of a connection check: the coordinator checks its callers, and
//! agents and the command line check the end that answers, since anybody may listen on a free port.
//! They trust the process's own user and root. This module does not judge connections beyond
//! loopback.

use std::{
    fs, io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
        netlink::{self, SocketAddrNetlink},
        recv, sendto, socket_with,
    },
};

/// What is known about the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    User(u32),
    /// The connection is closed already, is not accepted yet, or leads to another network
    /// namespace. The kernel cannot tell its user.
    Unknown,
}

impl Peer {
    pub fn is_trusted(self) -> bool {
        matches!(self, Peer::User(uid) if uid == 0 || uid == own_user())
    }
}

/// The user that this process acts as.
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Asks the kernel which user owns the socket at the other end, which has the address `peer` and is
/// connected to `local`.
pub fn ask(peer: SocketAddr, local: SocketAddr) -> io::Result<Peer> {
    let (peer, local) = (canonical(peer), canonical(local));
    match ask_netlink(peer, local) {
        // A kernel without this query gives one of these errors too. Its table has the same answer,
        // but takes longer to read.
        Err(
            Errno::NOENT
            | Errno::PROTONOSUPPORT
            | Errno::AFNOSUPPORT
            | Errno::OPNOTSUPP
            | Errno::INVAL
            | Errno::PERM,
        ) => ask_table(peer, local),
        answer => Ok(answer?),
    }
}

/// Converts the longer form in which a socket for both protocols writes an IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// `TCP_ESTABLISHED`. In other states the kernel may name root for a socket that no process owns
/// any more.
const ESTABLISHED: u8 = 1;
/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h). The answer has the same type.
const BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// The size of `struct nlmsghdr`.
const HEADER: usize = 16;
/// An answer has 72 bytes, and attributes that are not needed.
const ANSWER_MAX: usize = 4_096;

/// A netlink message with `struct inet_diag_req_v2` (linux/inet_diag.h), which asks for one socket
/// by its two addresses.
fn question(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
    let family = if peer.is_ipv4() { 2 } else { 10 };
    let mut body = vec![family, 6, 0, 0];
    // Any state.
    body.extend(u32::MAX.to_ne_bytes());
    for address in [peer, local] {
        body.extend(address.port().to_be_bytes());
    }
    for address in [peer, local] {
        let mut bytes = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        bytes.resize(16, 0);
        body.extend(bytes);
    }
    // Any interface, any cookie.
    body.extend(0_u32.to_ne_bytes());
    body.extend([0xff; 8]);
    let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Reads `struct inet_diag_msg`, or `struct nlmsgerr`.
fn answer(message: &[u8]) -> Result<Peer, Errno> {
    let word = |at: usize| {
        message
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_ne_bytes)
    };
    let kind = message
        .get(4..6)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u16::from_ne_bytes);
    match kind {
        Some(BY_FAMILY) => {
            let (state, uid, inode) = (
                message.get(HEADER + 1),
                word(HEADER + 64),
                word(HEADER + 68),
            );
            match (state, uid, inode) {
                (Some(&ESTABLISHED), Some(uid), Some(inode)) => Ok(owner(uid, inode != 0)),
                (Some(_), Some(_), Some(_)) => Ok(Peer::Unknown),
                _ => Err(Errno::BADMSG),
            }
        }
        Some(NLMSG_ERROR) => match word(HEADER).map(|error| (error as i32).wrapping_neg()) {
            Some(error) if error > 0 => Err(Errno::from_raw_os_error(error)),
            _ => Err(Errno::BADMSG),
        },
        _ => Err(Errno::BADMSG),
    }
}

/// The user of a socket. The kernel names root for a connection that no process has accepted yet,
/// and such a connection has no file.
fn owner(uid: u32, has_file: bool) -> Peer {
    if has_file {
        Peer::User(uid)
    } else {
        Peer::Unknown
    }
}

fn ask_netlink(peer: SocketAddr, local: SocketAddr) -> Result<Peer, Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    sendto(
        &socket,
        &question(peer, local),
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    // The kernel has answered when the send returns, so this never waits.
    let mut heard = vec![0; ANSWER_MAX];
    let (read, _) = recv(&socket, heard.as_mut_slice(), RecvFlags::DONTWAIT)?;
    answer(&heard[..read])
}

fn ask_table(peer: SocketAddr, local: SocketAddr) -> io::Result<Peer> {
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    let mut found = Peer::Unknown;
    if peer.is_ipv4() {
        found = in_table(&fs::read_to_string("/proc/self/net/tcp")?, peer, local);
    }
    match (found, fs::read_to_string("/proc/self/net/tcp6")) {
        (Peer::Unknown, Ok(table)) => Ok(in_table(&table, mapped(peer), mapped(local))),
        (Peer::Unknown, Err(e)) if e.kind() != io::ErrorKind::NotFound => Err(e),
        (found, _) => Ok(found),
    }
}

/// Finds a connection in /proc/net/tcp. The columns are: number, local and remote address, state,
/// three for queues and timers, user, timeout, inode.
fn in_table(table: &str, peer: SocketAddr, local: SocketAddr) -> Peer {
    let (peer, local) = (as_in_table(peer), as_in_table(local));
    let find = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_it = words.get(1) == Some(&peer.as_str())
            && words.get(2) == Some(&local.as_str())
            && words.get(3) == Some(&"01");
        is_it.then(|| Some(owner(words.get(7)?.parse().ok()?, *words.get(9)? != "0")))?
    };
    table.lines().find_map(find).unwrap_or(Peer::Unknown)
}

/// An address as 32-bit words in this machine's byte order, in hexadecimal digits.
fn as_in_table(address: SocketAddr) -> String {
    let words = |octets: &[u8]| -> String {
        let word = |four: &[u8]| u32::from_ne_bytes(four.try_into().expect("chunks of four"));
        octets
            .chunks_exact(4)
            .map(|four| format!("{:08X}", word(four)))
            .collect()
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&Ipv6Addr::octets(&ip)),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::stranger::{NOBODY, as_nobody};

    type Ask = fn(SocketAddr, SocketAddr) -> io::Result<Peer>;

    /// Both ways to ask the kernel.
    const WAYS: [Ask; 2] = [
        |peer, local| ask(peer, local),
        |peer, local| ask_table(canonical(peer), canonical(local)),
    ];

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn both_ends_of_a_connection_know_each_other() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (client, server) = pair(address);
            for way in WAYS {
                for end in [&client, &server] {
                    let peer = way(end.peer_addr().unwrap(), end.local_addr().unwrap()).unwrap();
                    assert_eq!(peer, Peer::User(own_user()), "{address}");
                    assert!(peer.is_trusted());
                }
            }
        }
    }

    #[test]
    fn an_ipv4_client_of_a_socket_for_both_protocols_is_known() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, _) = listener.accept().unwrap();
        for way in WAYS {
            for end in [&client, &server] {
                assert_eq!(
                    way(end.peer_addr().unwrap(), end.local_addr().unwrap()).unwrap(),
                    Peer::User(own_user())
                );
            }
        }
    }

    #[test]
    fn who_has_hung_up_or_has_not_accepted_yet_is_unknown() {
        let (client, server) = pair("127.0.0.1:0");
        let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        drop(client);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for way in WAYS {
            assert_eq!(
                way(peer, local).unwrap(),
                Peer::Unknown,
                "root is named for a socket that is nobody's any more"
            );
            let squatted =
                way(waiting.peer_addr().unwrap(), waiting.local_addr().unwrap()).unwrap();
            assert_eq!(
                squatted,
                Peer::Unknown,
                "root is named for a socket that is nobody's yet"
            );
        }
        assert!(!Peer::Unknown.is_trusted());
    }

    #[test]
    fn another_user_is_known_and_not_trusted() {
        assert!(!Peer::User(own_user() + 1).is_trusted() && Peer::User(0).is_trusted());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let Some(client) = as_nobody(move || TcpStream::connect(address).unwrap()) else {
            return;
        };
        let (server, peer) = listener.accept().unwrap();
        for way in WAYS {
            assert_eq!(
                way(peer, server.local_addr().unwrap()).unwrap(),
                Peer::User(NOBODY)
            );
        }
        assert!(!Peer::User(NOBODY).is_trusted());
        drop(client);
    }
}
