//! A port for the process of a run that must listen for its peers. It stays taken until the process
//! starts, so that no other run of this machine gets it.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
};

use muster_core::id::RunId;
use muster_runner::wire::PortRange;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// A port that is taken as long as this lives. Nobody can connect to it.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(crate) port: u16,
    _socket: OwnedFd,
}

/// Where the operator names no range: below the ports that Linux gives to outgoing connections (32,768
/// to 60,999 by default). One of those might be taken while the process still imports its libraries.
const PORTS: PortRange = PortRange {
    first: 20_000,
    last: 32_767,
};

/// Takes a free port at this address. All nodes of a generation try the same ports in the same order,
/// so where each has an address of its own they usually get the same port. Some programs count on that.
pub(crate) fn reserve(
    address: IpAddr,
    ports: Option<PortRange>,
    run: &RunId,
) -> Result<Reserved, String> {
    let ports = ports.unwrap_or(PORTS);
    let chance = run.to_string().bytes().fold(7_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let mut last = None;
    for port in ports.from_any(chance) {
        match take(SocketAddr::new(address, port)) {
            Ok(_socket) => return Ok(Reserved { port, _socket }),
            Err(e) => last = Some(e),
        }
    }
    let why = last.map(|e| e.to_string()).unwrap_or_default();
    Err(format!("no port of {ports} is free at {address}: {why}"))
}

fn take(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use muster_core::id::{Generation, JobUid};

    use super::*;

    #[test]
    fn two_nodes_on_one_machine_get_two_ports_and_others_the_same() {
        let run = |generation| RunId {
            job: JobUid::from("a"),
            generation: Generation(generation),
        };
        let at = |address: [u8; 4], run: &RunId| reserve(address.into(), None, run).unwrap();
        let (one, two) = (at([127, 0, 0, 1], &run(1)), at([127, 0, 0, 1], &run(1)));
        assert_ne!(one.port, two.port);
        let elsewhere = at([127, 0, 0, 2], &run(1));
        assert_eq!(one.port, elsewhere.port);
        let later = at([127, 0, 0, 1], &run(2));
        assert_ne!(one.port, later.port, "a new port for each generation");
        let free = one.port;
        drop(one);
        let again = at([127, 0, 0, 1], &run(1));
        assert_eq!(again.port, free, "its own process can have it");
    }

    #[test]
    fn a_range_without_a_free_port_is_named() {
        let run = RunId {
            job: JobUid::from("a"),
            generation: Generation(1),
        };
        let taken = reserve([127, 0, 0, 1].into(), None, &run).unwrap();
        let port = taken.port;
        let range = PortRange {
            first: port,
            last: port,
        };
        let error = reserve([127, 0, 0, 1].into(), Some(range), &run).unwrap_err();
        assert!(
            error.starts_with(&format!("no port of {port}-{port} is free at 127.0.0.1: ")),
            "{error}"
        );
    }
}
